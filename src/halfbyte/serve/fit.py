"""Compute whether a checkpoint fits on GPUs, and how many tokens of KV cache remain.

The memory model is vLLM's. It uses a share of each GPU (90 % by default). `memory_per_gpu.py` shards the weights
and estimates activations, workspaces and CUDA graphs, and the rest is KV cache in whole blocks. MLA caches one
latent per token, which cannot be split over heads: each GPU holds all of it, or with decode context parallelism its
part of the tokens. Grouped-query KV heads are split over the GPUs.

Computed and reported values follow; `tests/unit/serve/test_fit_facts.py` computes every line. First the values for the
builds of the reports. April's build is `--engine vllm==voipmonitor-20260423`, with which `halfbyte serve` prints these
numbers (with a draft and --set gpu_memory_utilization=0.94). May's build is not in engines.yaml:

    Kimi-K2.6 INT4 on 8 RTX PRO 6000 at 94 %, TP 8, no draft (rtx6kpro's guide of April 2026)
        DCP 1                            437,000 tokens   here   455,168   +4.2 %
        DCP 4                          1,690,000 tokens   here 1,772,544   +4.9 %
        DCP 8                          3,270,000 tokens   here 3,424,768   +4.7 %
    the same with an Eagle3 draft that samples
        DCP 1                            337,296 tokens   here   394,880  +17.1 %
        DCP 8                          1,769,600 tokens   here 2,313,216  +30.7 %
    the same machine and flags without a draft, a build of May 2026
        DCP 1                            491,344 tokens   here   459,008   -6.6 %
        DCP 8                          3,930,752 tokens   here 3,670,016   -6.6 %
    192 experts NVFP4 on 4 RTX PRO 6000, TP 4, Eagle3 draft, one request (the card does not state
    the share: 90 % was the default; with 92 % it would be +29 %, with the guide's 94 % +57 %)
        DCP 4                            811,000 tokens   here   814,080   +0.4 %
    MXFP4 on 8 MI350X (the card's "~70 GB/GPU weights"; 563.4 GB / 8 without replication would be 70.4)
        weights                               70.0 GB     here      73.3   +4.7 %

Without --engine `halfbyte serve` assumes vLLM 0.32, for which no numbers are published. It reserves more on sm_120
(`memory_per_gpu.py`), and with a draft it uses 90 % of the memory. Its results next to the reports for other builds:

    no draft, April
        DCP 1                            437,000 tokens   here   436,544   -0.1 %
        DCP 4                          1,690,000 tokens   here 1,474,048  -12.8 %
        DCP 8                          3,270,000 tokens   here 2,230,784  -31.8 %
    no draft, May
        DCP 1                            491,344 tokens   here   436,544  -11.2 %
        DCP 8                          3,930,752 tokens   here 2,230,784  -43.2 %
    with a draft, April
        DCP 1                            337,296 tokens   here   207,232  -38.6 %
        DCP 8                          1,769,600 tokens   here   947,712  -46.4 %
    192 experts, with a draft
        DCP 4                            811,000 tokens   here   812,288   +0.2 %

Two builds of one engine differ by 12 % with the same flags, which limits the accuracy of any such model. A draft with
probabilistic sampling takes 2.0 to 2.4 GB per GPU for 128 requests, which this model does not include. `halfbyte serve`
leaves room for it: it recommends 90 % with a draft and 94 % without on these cards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.evidence.launches import MemoryFit
from halfbyte.machine.resources import memory_facts
from halfbyte.serve.checkpoint_facts import Served
from halfbyte.serve.gpus import Gpus, parse_gpus
from halfbyte.serve.memory_per_gpu import Load, Parallel, Share, misfit, reserve, shares
from halfbyte.serve.needs import EXPERTS, Draft, Needs
from halfbyte.ui.suggest import did_you_mean
from halfbyte.ui.units import size

__all__ = ["Draft", "Fit", "Gpus", "Load", "Parallel", "fit", "kv_token_nbytes", "parse_gpus"]

UTILIZATION = 0.90
BLOCK = 64  # tokens per KV cache block: required by Blackwell kernels, and a multiple of 16 works everywhere
FP8, BF16 = "fp8", "bf16"
_VALUE_NBYTES = {FP8: 1, BF16: 2}
# DeepSeek's packed row, used by some kernels: 512 FP8 values, four FP32 scales, and the rotary key in BF16.
_PACKED, _PACKED_NBYTES = "fp8_ds_mla", 656
# Values of --kv-cache-dtype; "auto" is the model's dtype.
_OTHER_FP8, _OTHER_BF16 = ("fp8_e4m3", "fp8_e5m2", "fp8_inc"), ("bfloat16", "float16", "auto")
KV_DTYPES = {
    FP8: FP8,
    _PACKED: _PACKED,
    BF16: BF16,
    **dict.fromkeys(_OTHER_FP8, FP8),
    **dict.fromkeys(_OTHER_BF16, BF16),
}
_COUNTS = (1, 2, 4, 8, 16, 32, 64)  # GPU counts to suggest
_PRUNE_STEP = 8
_CONTEXT_STEP = 1024

_WIDE = ("float32", "float")  # values of --dtype for FP32, which is twice BF16


@dataclass(frozen=True, slots=True)
class Fit:
    """Result for one of several identical GPUs. Token counts are None if config.json lacks the KV cache geometry."""

    gpus: Gpus
    parallel: Parallel
    utilization: float
    weights: tuple[Share, ...]
    draft: tuple[Share, ...]
    reserve: tuple[Share, ...]
    kv_dtype: str
    block: int  # tokens per block
    kv_token_nbytes: int  # per token on a GPU that holds it
    kv_nbytes: int  # left for the KV cache; negative if the rest does not fit
    kv_tokens: int | None  # total of all copies
    fp8_tokens: int | None
    bf16_tokens: int | None
    context: int | None
    concurrency: int
    reserve_outside: bool  # whether `utilization` covers only weights and cache
    problem: str | None
    advice: str = ""  # how to make it fit

    @property
    def fits(self) -> bool:
        """Return whether the weights fit, with room for the requested context or at least one block of KV cache."""
        return self.problem is None

    @property
    def weights_nbytes(self) -> int:
        """Return the bytes of weights on a GPU, including a draft's."""
        return sum(share.nbytes for share in (*self.weights, *self.draft))

    @property
    def reserve_nbytes(self) -> int:
        """Return the bytes for activations, workspaces and CUDA graphs on a GPU."""
        return sum(share.nbytes for share in self.reserve)

    @property
    def contexts(self) -> float | None:
        """Return the number of full-length contexts that fit into the cache."""
        return self.kv_tokens / self.context if self.kv_tokens is not None and self.context else None

    def lines(self) -> list[str]:
        """Return the arithmetic step by step."""
        from halfbyte.serve.render import fit_lines  # noqa: PLC0415 - avoids an import cycle

        return fit_lines(self)

    def record(self) -> MemoryFit:
        """Return the fit for serve.json, including the assumptions."""
        fp8_contexts = self.fp8_tokens / self.context if self.fp8_tokens is not None and self.context else None
        return MemoryFit(
            gpus=str(self.gpus),
            fits=self.fits,
            problem=self.problem,
            advice=self.advice,
            tensor_parallel=self.parallel.tensor_of(self.gpus.count),
            expert_parallel=self.parallel.expert,
            decode_context_parallel=self.parallel.decode_context,
            gpu_memory_nbytes=self.gpus.memory_nbytes,
            gpu_memory_utilization=self.utilization,
            gpu_reserve_nbytes=self.reserve_nbytes,
            gpu_reserve_outside=self.reserve_outside,
            gpu_weights_nbytes=self.weights_nbytes,
            gpu_kv_nbytes=max(0, self.kv_nbytes),
            kv_dtype=self.kv_dtype,
            kv_token_nbytes=self.kv_token_nbytes,
            kv_tokens=self.kv_tokens,
            kv_tokens_fp8=self.fp8_tokens,
            kv_tokens_bf16=self.bf16_tokens,
            context=self.context,
            concurrency=self.concurrency,
            full_contexts=self.contexts,
            full_contexts_fp8=fp8_contexts,
            weights={share.name: share.nbytes for share in (*self.weights, *self.draft)},
            reserve={share.name: share.nbytes for share in self.reserve},
            arithmetic=tuple(self.lines()),
        )


@dataclass(frozen=True, slots=True)
class _Query:
    """Input of a fit; advice tries variations of it."""

    needs: Needs
    gpus: Gpus
    parallel: Parallel
    kv_dtype: str
    context: int | None
    concurrency: int | None
    load: Load
    utilization: float
    draft: Draft | None
    block: int
    reserve_outside: bool

    @property
    def target(self) -> int:
        """Return the required tokens: the requested context, or the model's full context."""
        return self.context or self.needs.context or 1


def fit(  # noqa: PLR0913 - independent launch parameters
    needs: Needs | Served,
    gpus: Gpus,
    *,
    parallel: Parallel | None = None,
    kv_dtype: str = FP8,
    context: int | None = None,
    concurrency: int | None = None,
    utilization: float = UTILIZATION,
    draft: Draft | int | None = None,
    load: Load | None = None,
    block: int = BLOCK,
    reserve_outside: bool = False,
) -> Fit:
    """Compute whether a checkpoint fits on GPUs, with advice if it does not.

    `context` and `concurrency` are the values of --max-model-len and --max-num-seqs. Without a context, the model's own
    is reported but not required to fit. A `draft` may be just its bytes. `load` overrides the other limits of the
    server. `block` is the number of tokens per cache block. With `reserve_outside` the utilization covers only weights
    and cache, as in SGLang, and the reserve must fit into the rest.
    """
    if kv_dtype not in KV_DTYPES:
        fix = did_you_mean(kv_dtype, KV_DTYPES)
        raise UsageError(f"unknown KV cache dtype '{kv_dtype}'", where="kv_cache_dtype", fix=fix)
    requirements = needs.needs if isinstance(needs, Served) else needs
    draft_model = Draft(draft) if isinstance(draft, int) else draft
    default = Load()
    load = load or Load(
        sequences=concurrency or default.sequences,
        context=context or requirements.context or default.context,
        speculative_tokens=draft_model.tokens if draft_model else 0,
    )
    query = _Query(
        needs=requirements,
        gpus=gpus,
        parallel=parallel or Parallel(),
        kv_dtype=KV_DTYPES[kv_dtype],
        context=context,
        concurrency=concurrency,
        load=load,
        utilization=utilization,
        draft=draft_model,
        block=block,
        reserve_outside=reserve_outside,
    )
    result = _divide(query)
    return result if result.fits else replace(result, advice=_advice(query, result))


def kv_token_nbytes(needs: Needs, tensor: int, dtype: str, draft: Draft | None = None) -> int:
    """Return the KV cache bytes per token on a GPU, in all layers including a draft's."""
    if not needs.layers or not needs.kv_values:
        return 0
    if dtype == _PACKED and needs.latent is not None:
        layer = _PACKED_NBYTES
    else:
        gpu_heads = -(-needs.kv_heads // tensor)  # heads are replicated if there are more GPUs than heads
        values = needs.kv_values // needs.layers * gpu_heads // needs.kv_heads
        layer = values * _VALUE_NBYTES[FP8 if dtype == _PACKED else dtype]
    return layer * (needs.layers + (draft.layers if draft else 0))


def _divide(query: _Query) -> Fit:
    needs, gpus, parallel = query.needs, query.gpus, query.parallel
    tensor = parallel.tensor_of(gpus.count)
    weights = shares(needs, gpus.count, parallel)
    draft = _draft_shares(query.draft, tensor)
    kept = reserve(needs, gpus, parallel, query.load)
    used = sum(share.nbytes for share in (*weights, *draft, *(() if query.reserve_outside else kept)))
    left = int(gpus.memory_nbytes * query.utilization) - used
    result = Fit(
        gpus=gpus,
        parallel=parallel,
        utilization=query.utilization,
        weights=weights,
        draft=draft,
        reserve=kept,
        kv_dtype=query.kv_dtype,
        block=query.block,
        kv_token_nbytes=kv_token_nbytes(needs, tensor, query.kv_dtype, query.draft),
        kv_nbytes=left,
        kv_tokens=_tokens(query, left, query.kv_dtype),
        fp8_tokens=_tokens(query, left, FP8),
        bf16_tokens=_tokens(query, left, BF16),
        context=query.context or needs.context,
        concurrency=query.load.sequences,
        reserve_outside=query.reserve_outside,
        problem=misfit(needs, gpus.count, parallel),
    )
    return result if result.problem else replace(result, problem=_problem(query, result, used))


def _problem(query: _Query, result: Fit, used: int) -> str | None:
    if result.kv_nbytes <= 0:
        return f"each GPU needs {used / 1e9:,.1f} GB, {-result.kv_nbytes / 1e9:,.1f} GB more than available"
    outside = result.gpus.memory_nbytes * (1 - result.utilization)
    if result.reserve_outside and result.reserve_nbytes > outside:
        needed = f"{result.reserve_nbytes / 1e9:,.1f} GB for activations, workspaces and CUDA graphs"
        return f"a memory share of {result.utilization:g} leaves {outside / 1e9:,.1f} GB, not {needed}"
    if result.kv_tokens is None:
        return None
    copies = result.gpus.count // result.parallel.tensor_of(result.gpus.count)
    room = result.kv_tokens // copies
    if room == 0:
        return f"{result.kv_nbytes / 1e9:,.1f} GB are left for the KV cache, less than one block"
    if query.context and room < query.context:
        return f"the KV cache has room for {room:,} tokens, less than a context of {query.context:,}"
    return None


def _draft_shares(draft: Draft | None, tensor: int) -> tuple[Share, ...]:
    if draft is None:
        return ()
    split = draft.nbytes - draft.whole_nbytes
    whole = Share("draft, on every GPU", draft.whole_nbytes, draft.whole_nbytes)
    divided = Share("draft", -(-split // tensor), split, tensor)
    return tuple(share for share in (divided, whole) if share.nbytes)


def _tokens(query: _Query, left: int, dtype: str) -> int | None:
    """Return the number of cached tokens in whole blocks; GPUs of a decode context group hold different tokens."""
    tensor = query.parallel.tensor_of(query.gpus.count)
    nbytes = kv_token_nbytes(query.needs, tensor, dtype, query.draft)
    if not nbytes:
        return None
    copies = max(1, query.gpus.count // tensor)
    return max(0, left) // (nbytes * query.block) * query.block * query.parallel.decode_context * copies


def _advice(query: _Query, result: Fit) -> str:
    """Return what would make it fit: more GPUs, pruning, or options of `halfbyte serve`."""
    steps = [_more_gpus(query), _pruned(query) if query.needs.experts else None]
    options: list[str | None] = []
    if query.kv_dtype != FP8:
        options.append("--set kv_cache_dtype=fp8" if _would_fit(replace(query, kv_dtype=FP8)) else None)
    options.append(_smaller_share(query, result))
    options.append(_more_context_parallel(query))
    options.append(_fewer_requests(query))
    if query.context and result.kv_tokens and misfit(query.needs, query.gpus.count, query.parallel) is None:
        shorter = result.kv_tokens // _CONTEXT_STEP * _CONTEXT_STEP
        options.append(f"--context {shorter}" if shorter else None)
    helpful = [option for option in options if option]
    steps.append(f"add {' or '.join(helpful)} to `halfbyte serve`" if helpful else None)
    return ", or ".join(step for step in steps if step) or f"it does not fit on any number of {query.gpus.name}"


def _would_fit(query: _Query) -> bool:
    result = _divide(query)
    return result.fits and (result.kv_tokens is None or result.kv_tokens >= query.target)


def _more_gpus(query: _Query) -> str | None:
    """Return the fewest GPUs of this kind that fit one copy with the context."""
    for count in _COUNTS:
        gpus = replace(query.gpus, count=count)
        parallel = replace(query.parallel, tensor=None, decode_context=min(query.parallel.decode_context, count))
        if _would_fit(replace(query, gpus=gpus, parallel=parallel)):
            machines = -(-count // gpus.box)
            several = f" ({machines} machines, for which `serve` cannot write a script)" if machines > 1 else ""
            return f"use {gpus}{several}"
    return None


def _pruned(query: _Query) -> str | None:
    """Return the largest number of experts that fits, with a warning below half of them."""
    experts = query.needs.experts
    first = (experts - 1) // _PRUNE_STEP * _PRUNE_STEP
    for kept in range(first, max(query.needs.active_experts, _PRUNE_STEP) - 1, -_PRUNE_STEP):
        if _would_fit(replace(query, needs=query.needs.pruned(kept))):
            warning = " (less than half: expect a damaged model)" if 2 * kept < experts else ""
            return f"prune to {kept} of {experts} experts{warning}"
    return None


def _smaller_share(query: _Query, result: Fit) -> str | None:
    """Return the largest utilization, in whole percent, that leaves room for the reserve outside it."""
    share = 100 * (result.gpus.memory_nbytes - result.reserve_nbytes) // result.gpus.memory_nbytes / 100
    if not query.reserve_outside or not 0 < share < query.utilization:
        return None
    return f"--set gpu_memory_utilization={share:g}" if _would_fit(replace(query, utilization=share)) else None


def _more_context_parallel(query: _Query) -> str | None:
    tensor = query.parallel.tensor_of(query.gpus.count)
    for ways in (2, 4, 8, 16):
        if query.parallel.decode_context < ways <= tensor:
            parallel = replace(query.parallel, decode_context=ways)
            if _would_fit(replace(query, parallel=parallel)):
                return f"--dcp {ways}"
    return None


def _fewer_requests(query: _Query) -> str | None:
    """Return the most concurrent requests that fit, where workspaces grow with them."""
    for sequences in (64, 32, 16, 8, 4, 2, 1):
        fewer = replace(query, load=replace(query.load, sequences=sequences))
        if sequences < query.load.sequences and _would_fit(fewer):
            return f"--set max_num_seqs={sequences}" if query.concurrency is None else f"--concurrency {sequences}"
    return None


def host_memory_nbytes() -> int:
    """Return the bytes of memory available to a process; 0 if unknown."""
    memory = memory_facts()
    return min((nbytes for nbytes in (memory.total_nbytes, memory.limit_nbytes) if nbytes), default=0)


def weights_nbytes(needs: Needs, *, emulate: bool, dtype: str | None) -> int:
    """Return the bytes of the weights in memory; with `emulate`, `needs` are those after the expansion to BF16."""
    times = 2 if dtype in _WIDE else 1
    return sum(part.nbytes * (1 if emulate and part.placed == EXPERTS else times) for part in needs.parts)


def refuse_too_large(needs: Needs, machine: Gpus, *, emulate: bool, dtype: str | None) -> None:
    """Raise CheckFailedError if the weights exceed this machine's memory; do nothing if its size is unknown.

    For engines that run on its CPU. Only the weights are checked, because a separate setting bounds the KV cache. With
    the vLLM plugin experts are BF16, and other weights have the dtype of the engine, FP32 by default.
    """
    nbytes = weights_nbytes(needs, emulate=emulate, dtype=dtype)
    if not machine.memory_nbytes or nbytes <= machine.memory_nbytes:
        return
    how = "expanded to BF16" if emulate else f"as {dtype or 'they are stored'}"
    needed, memory = size(nbytes), size(machine.memory_nbytes)
    what = f"it does not fit this machine: the weights {how} need {needed}, the machine has {memory}"
    fix = "use a machine with more memory, or replace --run with --gpus to get a script"
    raise CheckFailedError(what, where="--run", fix=fix)
