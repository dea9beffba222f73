"""Whether a checkpoint fits some GPUs, and how many tokens of KV cache are left: arithmetic, nothing is asked.

The model is vLLM's: of each GPU a share is used (90 % here); weights are divided as `parallel.py` says; activations,
workspaces and CUDA graphs take what `reserve.py` says; the rest is KV cache, in whole blocks. MLA's cache is one latent
a token and cannot be split over heads, so that each GPU holds all of it, or with decode context parallelism its part of
the tokens; grouped-query heads are split as far as there are any.

How far off it is, against what people report; `tests/unit/serve/test_fit_facts.py` computes every line. First the
builds that the reports are of. April's is `--engine vllm==voipmonitor-20260423`, and `halfbyte serve` prints these
numbers with it (with a draft after --set gpu_memory_utilization=0.94); May's has no name there:

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
    192 experts NVFP4 on 4 RTX PRO 6000, TP 4, Eagle3 draft, one request (which share, the card
    does not say: 90 % was the default; with 92 % it would be +29 %, with the guide's 94 % +57 %)
        DCP 4                            811,000 tokens   here   814,080   +0.4 %
    MXFP4 on 8 MI350X (the card's "~70 GB/GPU weights"; 563.4 GB / 8 without what is replicated would be 70.4)
        weights                               70.0 GB     here      73.3   +4.7 %

Without --engine `halfbyte serve` counts vLLM 0.32, of which nobody has published a number. It reserves more on sm_120
(`reserve.py`), and with a draft 90 % of the memory is used. This is what it prints, beside the reports of other builds:

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

Two builds of one engine differ by 12 % with the same flags, so that no model of this kind can promise more. A draft
that samples takes 2.0 to 2.4 GB on each GPU for 128 requests that are not accounted for here: `halfbyte serve` leaves
them free and recommends 90 % where there is a draft, 94 % on these cards where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.serve.draft import Draft
from halfbyte.serve.gpus import Gpus, parse_gpus
from halfbyte.serve.needs import Needs
from halfbyte.serve.parallel import Parallel, Share, misfit, shares
from halfbyte.serve.reserve import Load, reserve
from halfbyte.serve.served import Served
from halfbyte.terminal.suggest import did_you_mean

__all__ = ["Draft", "Fit", "Gpus", "Load", "Parallel", "fit", "kv_token_nbytes", "parse_gpus"]

UTILIZATION = 0.90
BLOCK = 64  # tokens of a block of KV cache; kernels on Blackwell want it, and a multiple of 16 does everywhere
FP8, BF16 = "fp8", "bf16"
_VALUE_NBYTES = {FP8: 1, BF16: 2}
# DeepSeek's packed row: 512 FP8 values, four FP32 scales, and the rotary key in BF16. Some kernels want it.
_PACKED, _PACKED_NBYTES = "fp8_ds_mla", 656
# As --kv-cache-dtype spells them; "auto" is the model's own.
_OTHER_FP8, _OTHER_BF16 = ("fp8_e4m3", "fp8_e5m2", "fp8_inc"), ("bfloat16", "float16", "auto")
KV_DTYPES = {
    FP8: FP8,
    _PACKED: _PACKED,
    BF16: BF16,
    **dict.fromkeys(_OTHER_FP8, FP8),
    **dict.fromkeys(_OTHER_BF16, BF16),
}
_COUNTS = (1, 2, 4, 8, 16, 32, 64)  # GPUs that people put together
_PRUNE_STEP = 8
_CONTEXT_STEP = 1024


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer, for one GPU of several that are all alike. Tokens are None where the config does not tell."""

    gpus: Gpus
    parallel: Parallel
    utilization: float
    weights: tuple[Share, ...]
    draft: tuple[Share, ...]
    reserve: tuple[Share, ...]
    kv_dtype: str
    block: int  # tokens of one
    kv_token_nbytes: int  # of a token on one GPU that holds it
    kv_nbytes: int  # left for the KV cache; negative where not even the weights fit
    kv_tokens: int | None  # of all copies together
    fp8_tokens: int | None
    bf16_tokens: int | None
    context: int | None
    concurrency: int
    shares_kv: bool  # whether the GPUs split the KV cache
    reserve_outside: bool  # whether `utilization` is of weights and cache only
    problem: str | None
    advice: str = ""  # what would fit, where this does not

    @property
    def fits(self) -> bool:
        """Whether weights find room, and the context that was asked for, or else at least some tokens."""
        return self.problem is None

    @property
    def weights_nbytes(self) -> int:
        """Return the bytes of weights on a GPU, a draft's included."""
        return sum(share.nbytes for share in (*self.weights, *self.draft))

    @property
    def reserve_nbytes(self) -> int:
        """Return what a GPU keeps for activations, workspaces and CUDA graphs."""
        return sum(share.nbytes for share in self.reserve)

    @property
    def contexts(self) -> float | None:
        """Return how many full-length contexts the cache holds."""
        return self.kv_tokens / self.context if self.kv_tokens is not None and self.context else None

    def lines(self) -> list[str]:
        """Return the arithmetic, line by line, so that a person can check it."""
        from halfbyte.serve.fit_text import fit_lines  # noqa: PLC0415 - it renders what this file computes

        return fit_lines(self)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it, with what was assumed."""
        fp8_contexts = self.fp8_tokens / self.context if self.fp8_tokens is not None and self.context else None
        return {
            "gpus": str(self.gpus),
            "fits": self.fits,
            "problem": self.problem,
            "advice": self.advice,
            "tensor_parallel": self.parallel.tensor_of(self.gpus.count),
            "expert_parallel": self.parallel.expert,
            "decode_context_parallel": self.parallel.decode_context,
            "gpu_memory_nbytes": self.gpus.memory_nbytes,
            "gpu_memory_utilization": self.utilization,
            "gpu_reserve_nbytes": self.reserve_nbytes,
            "gpu_reserve_outside": self.reserve_outside,
            "gpu_weights_nbytes": self.weights_nbytes,
            "gpu_kv_nbytes": max(0, self.kv_nbytes),
            "kv_dtype": self.kv_dtype,
            "kv_token_nbytes": self.kv_token_nbytes,
            "kv_tokens": self.kv_tokens,
            "kv_tokens_fp8": self.fp8_tokens,
            "kv_tokens_bf16": self.bf16_tokens,
            "context": self.context,
            "concurrency": self.concurrency,
            "full_contexts": self.contexts,
            "full_contexts_fp8": fp8_contexts,
            "weights": {share.name: share.nbytes for share in (*self.weights, *self.draft)},
            "reserve": {share.name: share.nbytes for share in self.reserve},
            "arithmetic": self.lines(),
        }


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question, and the variations of it that advice tries."""

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
        """Return the tokens that would do: one context as asked, or else of full length."""
        return self.context or self.needs.context or 1


def fit(  # noqa: PLR0913 - each is a question that people ask, and all have an answer
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
    """Divide a checkpoint among GPUs; where it does not fit, say what would.

    `context` and `concurrency` are what --max-model-len and --max-num-seqs would be; without a context, the model's own
    is shown, but fewer tokens are no reason to say no. A `draft` may be just its bytes. `load` overrides the rest of
    what a server is asked to take; `block` is the tokens of a block of the cache. With `reserve_outside` the share is
    of weights and cache only, as SGLang's, and what is reserved must find room beside it.
    """
    if kv_dtype not in KV_DTYPES:
        fix = did_you_mean(kv_dtype, KV_DTYPES)
        raise UsageError(f"no KV cache is stored as '{kv_dtype}'", where="kv_cache_dtype", fix=fix)
    asked = needs.needs if isinstance(needs, Served) else needs
    guess = Draft(draft) if isinstance(draft, int) else draft
    default = Load()
    load = load or Load(
        sequences=concurrency or default.sequences,
        context=context or asked.context or default.context,
        speculative_tokens=guess.tokens if guess else 0,
    )
    question = _Asked(
        needs=asked,
        gpus=gpus,
        parallel=parallel or Parallel(),
        kv_dtype=KV_DTYPES[kv_dtype],
        context=context,
        concurrency=concurrency,
        load=load,
        utilization=utilization,
        draft=guess,
        block=block,
        reserve_outside=reserve_outside,
    )
    found = _divide(question)
    return found if found.fits else replace(found, advice=_advice(question, found))


def kv_token_nbytes(needs: Needs, tensor: int, dtype: str, draft: Draft | None = None) -> int:
    """Return what a GPU stores for a token that it holds, in all layers, a draft's included."""
    if not needs.layers or not needs.kv_values:
        return 0
    if dtype == _PACKED and needs.latent is not None:
        layer = _PACKED_NBYTES
    else:
        heads_here = -(-needs.kv_heads // tensor)  # with more GPUs than heads some hold the same ones
        values = needs.kv_values // needs.layers * heads_here // needs.kv_heads
        layer = values * _VALUE_NBYTES[FP8 if dtype == _PACKED else dtype]
    return layer * (needs.layers + (draft.layers if draft else 0))


def _divide(asked: _Asked) -> Fit:
    needs, gpus, parallel = asked.needs, asked.gpus, asked.parallel
    tensor = parallel.tensor_of(gpus.count)
    weights = shares(needs, gpus.count, parallel)
    draft = _draft_shares(asked.draft, tensor)
    kept = reserve(needs, gpus, parallel, asked.load)
    used = sum(share.nbytes for share in (*weights, *draft, *(() if asked.reserve_outside else kept)))
    left = int(gpus.memory_nbytes * asked.utilization) - used
    found = Fit(
        gpus=gpus,
        parallel=parallel,
        utilization=asked.utilization,
        weights=weights,
        draft=draft,
        reserve=kept,
        kv_dtype=asked.kv_dtype,
        block=asked.block,
        kv_token_nbytes=kv_token_nbytes(needs, tensor, asked.kv_dtype, asked.draft),
        kv_nbytes=left,
        kv_tokens=_tokens(asked, left, asked.kv_dtype),
        fp8_tokens=_tokens(asked, left, FP8),
        bf16_tokens=_tokens(asked, left, BF16),
        context=asked.context or needs.context,
        concurrency=asked.load.sequences,
        shares_kv=(needs.kv_heads > 1 and tensor > 1) or parallel.decode_context > 1,
        reserve_outside=asked.reserve_outside,
        problem=misfit(needs, gpus.count, parallel),
    )
    return found if found.problem else replace(found, problem=_problem(asked, found, used))


def _problem(asked: _Asked, found: Fit, used: int) -> str | None:
    if found.kv_nbytes <= 0:
        return f"each GPU would need {used / 1e9:,.1f} GB, {-found.kv_nbytes / 1e9:,.1f} GB too many"
    if found.reserve_outside and found.reserve_nbytes > (beside := found.gpus.memory_nbytes * (1 - found.utilization)):
        kept = f"{found.reserve_nbytes / 1e9:,.1f} GB for activations and the like"
        return f"a share of {found.utilization:g} leaves {beside / 1e9:,.1f} GB beside it, not {kept}"
    if found.kv_tokens is None:
        return None
    copies = found.gpus.count // found.parallel.tensor_of(found.gpus.count)
    room = found.kv_tokens // copies
    if room == 0:
        return f"{found.kv_nbytes / 1e9:,.1f} GB are left for the KV cache, which is not one block"
    if asked.context and room < asked.context:
        return f"the KV cache has room for {room:,} tokens, a context of {asked.context:,} does not fit"
    return None


def _draft_shares(draft: Draft | None, tensor: int) -> tuple[Share, ...]:
    if draft is None:
        return ()
    split = draft.nbytes - draft.whole_nbytes
    whole = Share("draft, on every GPU", draft.whole_nbytes, draft.whole_nbytes)
    divided = Share("draft", -(-split // tensor), split, tensor)
    return tuple(share for share in (divided, whole) if share.nbytes)


def _tokens(asked: _Asked, left: int, dtype: str) -> int | None:
    """Return the tokens in whole blocks; a GPU of a decode context group holds every so many-th token."""
    tensor = asked.parallel.tensor_of(asked.gpus.count)
    nbytes = kv_token_nbytes(asked.needs, tensor, dtype, asked.draft)
    if not nbytes:
        return None
    copies = max(1, asked.gpus.count // tensor)
    return max(0, left) // (nbytes * asked.block) * asked.block * asked.parallel.decode_context * copies


def _advice(asked: _Asked, found: Fit) -> str:
    """Name what would do, as options of `halfbyte serve`: GPUs, fewer experts, a smaller cache, a shorter context."""
    options = [_more_gpus(asked)]
    if asked.needs.experts:
        options.append(_pruned(asked))
    if asked.kv_dtype != FP8:
        options.append("--set kv_cache_dtype=fp8" if _would_do(replace(asked, kv_dtype=FP8)) else None)
    options.append(_smaller_share(asked, found))
    options.append(_more_context_parallel(asked))
    options.append(_fewer_requests(asked))
    if asked.context and found.kv_tokens and misfit(asked.needs, asked.gpus.count, asked.parallel) is None:
        shorter = found.kv_tokens // _CONTEXT_STEP * _CONTEXT_STEP
        options.append(f"--context {shorter}" if shorter else None)
    known = [option for option in options if option]
    of_serve = " with `halfbyte serve`" if any(option.startswith("--") for option in known) else ""
    return f"{' or '.join(known)} would do{of_serve}" if known else f"no number of {asked.gpus.name} would do"


def _would_do(asked: _Asked) -> bool:
    found = _divide(asked)
    return found.fits and (found.kv_tokens is None or found.kv_tokens >= asked.target)


def _more_gpus(asked: _Asked) -> str | None:
    """Name the fewest GPUs of this kind with room for the context, all in one copy."""
    for count in _COUNTS:
        gpus = replace(asked.gpus, count=count)
        parallel = replace(asked.parallel, tensor=None, decode_context=min(asked.parallel.decode_context, count))
        if _would_do(replace(asked, gpus=gpus, parallel=parallel)):
            machines = -(-count // gpus.box)
            return f"{gpus} ({machines} machines, which `serve` writes no script for)" if machines > 1 else str(gpus)
    return None


def _pruned(asked: _Asked) -> str | None:
    """Name the most experts that fit, in steps; below half of them a model is hardly one."""
    experts = asked.needs.experts
    first = (experts - 1) // _PRUNE_STEP * _PRUNE_STEP
    for kept in range(first, max(asked.needs.active_experts, _PRUNE_STEP) - 1, -_PRUNE_STEP):
        if _would_do(replace(asked, needs=asked.needs.pruned(kept))):
            worn = " (less than half: expect a damaged model)" if 2 * kept < experts else ""
            return f"pruning to {kept} of {experts} experts{worn}"
    return None


def _smaller_share(asked: _Asked, found: Fit) -> str | None:
    """Name the largest share, in percent, that leaves room for what lies outside of it."""
    share = 100 * (found.gpus.memory_nbytes - found.reserve_nbytes) // found.gpus.memory_nbytes / 100
    if not asked.reserve_outside or not 0 < share < asked.utilization:
        return None
    return f"--set gpu_memory_utilization={share:g}" if _would_do(replace(asked, utilization=share)) else None


def _more_context_parallel(asked: _Asked) -> str | None:
    tensor = asked.parallel.tensor_of(asked.gpus.count)
    for size in (2, 4, 8, 16):
        if asked.parallel.decode_context < size <= tensor:
            parallel = replace(asked.parallel, decode_context=size)
            if _would_do(replace(asked, parallel=parallel)):
                return f"--dcp {size}"
    return None


def _fewer_requests(asked: _Asked) -> str | None:
    """Name the most requests at once whose workspaces leave room; it matters where they grow with the requests."""
    for sequences in (64, 32, 16, 8, 4, 2, 1):
        fewer = replace(asked, load=replace(asked.load, sequences=sequences))
        if sequences < asked.load.sequences and _would_do(fewer):
            return f"--set max_num_seqs={sequences}" if asked.concurrency is None else f"--concurrency {sequences}"
    return None
