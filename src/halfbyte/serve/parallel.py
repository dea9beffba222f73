"""How vLLM spreads a model's weights over GPUs: which part each GPU holds, by tensor, expert and data parallelism.

Read off vLLM 0.32 (deepseek_v2.py, mla_attention.py, fused_moe, vocab_parallel_embedding.py, kimi_k25_vit.py). MLA's
q_a and kv_a, routers and norms are replicated; q_b, kv_b, o, dense and shared MLPs are split by heads or width; the
embedding and the head by rows, padded to 64. Routed experts are split by width, or with --enable-expert-parallel dealt
out whole, the first GPUs taking one more where the number is no multiple. With several data-parallel copies and expert
parallelism vLLM computes MoE layers on split sequences, and shared experts are then on every GPU.

Decode context parallelism (DCP) splits the cache of a latent by tokens, and no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from halfbyte.serve.needs import EXPERTS, TOWER, VOCABULARY, WIDTH, Needs, Part

_VOCABULARY_MULTIPLE = 64
_SHARED = "shared experts"


@dataclass(frozen=True, slots=True)
class Parallel:
    """How an engine divides a model. `tensor` None means all GPUs; with fewer, there are several copies."""

    tensor: int | None = None
    expert: bool = False
    decode_context: int = 1
    vision: str = "data"  # --mm-encoder-tp-mode: data (the tower whole on each GPU) or weights

    def tensor_of(self, count: int) -> int:
        """Return the GPUs of one copy."""
        return self.tensor or count

    def words(self, count: int) -> str:
        """Return it in short: TP 4, EP 4, DCP 4."""
        tensor = self.tensor_of(count)
        expert = f", EP {count}" if self.expert else ""
        copies = f", {count // tensor} copies" if tensor != count else ""
        return f"TP {tensor}{expert}{f', DCP {self.decode_context}' if self.decode_context > 1 else ''}{copies}"


@dataclass(frozen=True, slots=True)
class Share:
    """What one GPU holds of a part: `divisor` 1 is all of it; `why` is said where it is not simply divided."""

    name: str
    nbytes: int
    of_nbytes: int
    divisor: int = 1
    why: str = ""


def misfit(needs: Needs, count: int, parallel: Parallel) -> str | None:
    """Say what an engine would refuse, or None."""
    tensor, context = parallel.tensor_of(count), parallel.decode_context
    if count % tensor:
        return f"{count} GPUs are no whole number of copies on {tensor}"
    if needs.heads and needs.heads % tensor:
        return f"{needs.heads} attention heads cannot be split over {tensor} GPUs"
    if context < 1 or tensor % context:
        return f"decode context parallelism {context} does not divide the {tensor} GPUs of tensor parallelism"
    if context > max(1, tensor // needs.kv_heads):
        return f"decode context parallelism {context} needs {context} GPUs with the same KV heads"
    return None


def shares(needs: Needs, count: int, parallel: Parallel) -> tuple[Share, ...]:
    """Return what the fullest GPU holds of each part."""
    return tuple(_share(part, needs, count, parallel) for part in needs.parts)


def _share(part: Part, needs: Needs, count: int, parallel: Parallel) -> Share:
    tensor = parallel.tensor_of(count)
    if part.placed == EXPERTS and parallel.expert:
        return _whole_experts(part, needs, count)
    sequence_parallel = parallel.expert and 1 < tensor < count
    if part.name == _SHARED and sequence_parallel:
        return Share(part.name, part.nbytes, part.nbytes, why="whole: sequences are split")
    if part.placed == VOCABULARY:
        return _rows(part, needs, tensor)
    if part.placed in (WIDTH, EXPERTS) or (part.placed == TOWER and parallel.vision == "weights"):
        return Share(part.name, -(-part.nbytes // tensor), part.nbytes, tensor)
    return Share(part.name, part.nbytes, part.nbytes, why="on every GPU")


def _rows(part: Part, needs: Needs, tensor: int) -> Share:
    if not needs.vocabulary:
        return Share(part.name, -(-part.nbytes // tensor), part.nbytes, tensor)
    multiple = _VOCABULARY_MULTIPLE
    padded = -(-needs.vocabulary // multiple) * multiple
    rows = -(-padded // tensor)
    why = "" if rows * tensor == needs.vocabulary else f"{needs.vocabulary:,} rows padded to {rows * tensor:,}"
    return Share(part.name, -(-part.nbytes * rows // needs.vocabulary), part.nbytes, tensor, why)


def _whole_experts(part: Part, needs: Needs, count: int) -> Share:
    nbytes = sum(row.nbytes // row.experts * -(-row.experts // count) for row in needs.routed)
    most = -(-needs.experts // count)
    why = f"{most} of {needs.experts} experts" if needs.experts % count else ""
    return Share(part.name, nbytes, part.nbytes, count, why)
