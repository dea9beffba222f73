"""Sharding of a model's weights over GPUs in vLLM, by tensor, expert and data parallelism.

From vLLM 0.32 (deepseek_v2.py, mla_attention.py, fused_moe, vocab_parallel_embedding.py, kimi_k25_vit.py). MLA's q_a
and kv_a, routers and norms are replicated. q_b, kv_b, o, dense and shared MLPs are split by heads or width. The
embedding and the output head are split by rows, padded to 64. Routed experts are split by width. With
--enable-expert-parallel each GPU holds whole experts, and the first GPUs take one more if they do not divide evenly.
With data and expert parallelism vLLM uses sequence parallelism in MoE layers and replicates shared experts.

Decode context parallelism (DCP) splits the latent KV cache by tokens, but no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from halfbyte.serve.needs import EXPERTS, TOWER, VOCABULARY, WIDTH, Needs, Part

_VOCABULARY_MULTIPLE = 64
_SHARED = "shared experts"


@dataclass(frozen=True, slots=True)
class Parallel:
    """Parallelism of a launch. `tensor` None means all GPUs; with fewer, there are several copies of the model."""

    tensor: int | None = None
    expert: bool = False
    decode_context: int = 1
    vision: str = "data"  # --mm-encoder-tp-mode: data (vision tower replicated) or weights (split)

    def tensor_of(self, count: int) -> int:
        """Return the number of GPUs per copy."""
        return self.tensor or count

    def words(self, count: int) -> str:
        """Return a short description: TP 4, EP 4, DCP 4."""
        tensor = self.tensor_of(count)
        expert = f", EP {count}" if self.expert else ""
        copies = f", {count // tensor} copies" if tensor != count else ""
        return f"TP {tensor}{expert}{f', DCP {self.decode_context}' if self.decode_context > 1 else ''}{copies}"


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a part on one GPU. `divisor` 1 means all of it; `why` explains an uneven share."""

    name: str
    nbytes: int
    of_nbytes: int
    divisor: int = 1
    why: str = ""


def misfit(needs: Needs, count: int, parallel: Parallel) -> str | None:
    """Return why an engine would refuse this parallelism, or None."""
    tensor, context = parallel.tensor_of(count), parallel.decode_context
    if count % tensor:
        return f"{count} GPUs cannot be divided into copies of {tensor}"
    if needs.heads and needs.heads % tensor:
        return f"{needs.heads} attention heads cannot be split over {tensor} GPUs"
    if context < 1 or tensor % context:
        return f"decode context parallelism {context} does not divide the {tensor} GPUs of tensor parallelism"
    if context > max(1, tensor // needs.kv_heads):
        return f"decode context parallelism {context} needs {context} GPUs with the same KV heads"
    return None


def shares(needs: Needs, count: int, parallel: Parallel) -> tuple[Share, ...]:
    """Return the share of each part on the GPU that holds the most."""
    return tuple(_share(part, needs, count, parallel) for part in needs.parts)


def _share(part: Part, needs: Needs, count: int, parallel: Parallel) -> Share:
    tensor = parallel.tensor_of(count)
    if part.placed == EXPERTS and parallel.expert:
        return _whole_experts(part, needs, count)
    sequence_parallel = parallel.expert and 1 < tensor < count
    if part.name == _SHARED and sequence_parallel:
        return Share(part.name, part.nbytes, part.nbytes, why="on every GPU: sequence parallelism")
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
