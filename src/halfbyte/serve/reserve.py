"""GPU memory besides weights and KV cache, as vLLM's profile run measures it, computed from sizes in its source.

The profile run sends one full batch through the model. Its peak consists of the expert outputs of all tokens (one row
per token and active expert, before they are summed), a few hidden states, and the output of a full image batch. MLA
keeps a workspace for prefill over cached context. The 64k rows of all heads that it expands from that workspace do not
coexist with the expert outputs, so the larger of the two counts. The same holds for the sampler's logits.

On sm_120 vLLM has one MLA kernel with FP8 support, TRITON_MLA. It splits long contexts and reserves an FP32 buffer for
every split of every row and head. With decode context parallelism each GPU computes all heads of its group, so the
buffer grows with it. This is why 437,000 tokens do not become 8 x 437,000 with DCP 8.

LIBRARIES_NBYTES, for CUDA graphs and the workspaces of cuBLAS and other libraries, is an estimate. Two builds of vLLM
differ there by 1.9 GB on the same machine with the same flags (see `fit.py`), and 1.5 GB is between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from halfbyte.serve.gpus import Gpus
from halfbyte.serve.needs import Needs
from halfbyte.serve.parallel import Parallel, Share

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
