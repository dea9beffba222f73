"""Memory of one GPU under vLLM: its share of the weights, and the reserve besides weights and KV cache.

Sharding follows vLLM 0.32 (deepseek_v2.py, mla_attention.py, fused_moe, vocab_parallel_embedding.py, kimi_k25_vit.py).
MLA's q_a and kv_a, routers and norms are replicated. q_b, kv_b, o, dense and shared MLPs are split by heads or width.
The embedding and the output head are split by rows, padded to 64. Routed experts are split by width. With
--enable-expert-parallel each GPU holds whole experts, and the first GPUs take one more if they do not divide evenly.
With data and expert parallelism vLLM uses sequence parallelism in MoE layers and replicates shared experts. Decode
context parallelism (DCP) splits the latent KV cache by tokens, but no weights.

The reserve is what vLLM's profile run measures, computed from sizes in its source. The profile run sends one full batch
through the model. Its peak consists of the expert outputs of all tokens (one row per token and active expert, before
they are summed), a few hidden states, and the output of a full image batch. MLA keeps a workspace for prefill over
cached context. The 64k rows of all heads that it expands from that workspace do not coexist with the expert outputs, so
the larger of the two counts. The same holds for the sampler's logits.

On sm_120 vLLM has one MLA kernel with FP8 support, TRITON_MLA. It splits long contexts and reserves an FP32 buffer for
every split of every row and head. With decode context parallelism each GPU computes all heads of its group, so the
buffer grows with it. This is why 437,000 tokens do not become 8 x 437,000 with DCP 8.

LIBRARIES_NBYTES, for CUDA graphs and the workspaces of cuBLAS and other libraries, is an estimate. Two builds of vLLM
differ there by 1.9 GB on the same machine with the same flags (see `fit.py`), and 1.5 GB is between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from halfbyte.serve.gpus import Gpus
from halfbyte.serve.needs import EXPERTS, TOWER, VOCABULARY, WIDTH, Needs, Part

_VOCABULARY_MULTIPLE = 64
_SHARED = "shared experts"

LIBRARIES_NBYTES = 1_500_000_000
_BF16, _FP32 = 2, 4
_HIDDEN_STATES = 4  # per layer: the input, the residual, the output and its normalized copy
_SAMPLER_COPIES = 3  # logits, their sorted copy, probabilities
_PREFILL_ROWS = 64 * 1024  # the most rows of cached context that vLLM expands at once
_AUX_STATES = 3  # hidden states of three layers that an Eagle3 draft reads, and their concatenation
_MIN_WORK_PER_SPLIT = 512
_SPLITS_PER_MULTIPROCESSOR = 2
_FIXED_WORKSPACE = 128 << 20  # of the other MLA kernels; twice that where partial results are merged


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


@dataclass(frozen=True, slots=True)
class Load:
    """The limits of a server: batched tokens, concurrent sequences and context.

    `splits` None means what vLLM 0.32 reserves on sm_120. Earlier builds differ: rtx6kpro's of April 2026 has 64, that
    of May reserves nothing (0), so decoding can run out of memory there.
    """

    batched_tokens: int = 8192
    sequences: int = 128
    context: int = 262_144
    speculative_tokens: int = 0
    splits: int | None = None

    @property
    def rows(self) -> int:
        """Return the tokens that one decoding step computes."""
        return self.sequences * (1 + self.speculative_tokens)


def reserve(needs: Needs, gpus: Gpus, parallel: Parallel, load: Load) -> tuple[Share, ...]:
    """Return the memory that each GPU needs besides weights and cache."""
    tensor = parallel.tensor_of(gpus.count)
    parts = [("activations", _activations(needs, tensor, load), f"of {load.batched_tokens:,} tokens at once")]
    if needs.latent is not None:
        dcp = f", DCP {parallel.decode_context}" if parallel.decode_context > 1 else ""
        why = f"for {load.sequences:,} requests{dcp}"
        parts.append(("attention workspace", _attention(needs, gpus, parallel, load), why))
    if load.speculative_tokens:
        aux = 2 * _AUX_STATES * load.batched_tokens * (needs.width or 0) * _BF16
        parts.append(("hidden states for the draft", aux, f"of {load.batched_tokens:,} tokens"))
    parts.append(("CUDA graphs and libraries", LIBRARIES_NBYTES, "an estimate"))
    return tuple(Share(name, nbytes, nbytes, why=why) for name, nbytes, why in parts if nbytes)


def _activations(needs: Needs, tensor: int, load: Load) -> int:
    width, tokens = needs.width or 0, load.batched_tokens
    hidden = tokens * width * _BF16
    inner = 3 * (needs.expert_width or 0) // tensor  # gate, up, and their product
    experts = tokens * needs.active_experts * (width + inner) * _BF16
    expanded = _PREFILL_ROWS * (needs.expanded or 0) // tensor * _BF16
    logits = _SAMPLER_COPIES * load.rows * (needs.vocabulary or 0) * _FP32
    images = hidden if needs.vision else 0
    return max(experts, expanded, logits) + _HIDDEN_STATES * hidden + images


def _attention(needs: Needs, gpus: Gpus, parallel: Parallel, load: Load) -> int:
    """Return the bytes of MLA's workspaces: for prefill over cached context, and for the splits of long contexts."""
    context_parallel, latent = parallel.decode_context, needs.latent or 0
    rows = min(_PREFILL_ROWS, max(8 * load.context, 64 * load.sequences))
    prefill = (rows + (rows // context_parallel if context_parallel > 1 else 0)) * latent * _BF16
    if not gpus.multiprocessors:
        return prefill + _FIXED_WORKSPACE * (2 if context_parallel > 1 else 1)
    heads = (needs.heads or 0) // parallel.tensor_of(gpus.count) * context_parallel
    values = (needs.value_latent or latent) + 1  # a partial output and its log-sum-exp
    # With DCP vLLM 0.32 verifies draft tokens as a prefill, so this kernel decodes one token per request.
    alone = load.splits is None and context_parallel > 1
    return prefill + (load.sequences if alone else load.rows) * heads * _splits(gpus, load) * values * _FP32


def _splits(gpus: Gpus, load: Load) -> int:
    if load.splits is not None:
        return load.splits
    wanted = max(1, load.context // _MIN_WORK_PER_SPLIT)
    return min(1 << (wanted - 1).bit_length(), _SPLITS_PER_MULTIPROCESSOR * gpus.multiprocessors)
