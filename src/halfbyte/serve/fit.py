"""Whether a checkpoint fits some GPUs, and how many tokens of KV cache are left: arithmetic, nothing is asked.

The model is vLLM's, made simple. Of each GPU 90 % is used (its default). Weights are split evenly by tensor
parallelism, but for what every GPU holds whole: routers, norms, MLA's down-projections, the vision tower. 4 GB a GPU
are for activations, CUDA graphs and communication; the rest is KV cache. MLA's cache is one latent a token and cannot
be split over heads, so that each GPU holds all of it; grouped-query heads are split as far as there are any.

Two reports to hold it against. Kimi-K2.6 as released on 8 RTX PRO 6000 at 94 %: 437,000 tokens, 419,000 here; the 4 GB
were chosen with this one in view. Pruned to 192 experts on 4 of them: 203,000 a GPU (811,000 with decode context
parallelism over 4, which splits the cache by tokens), 229,000 here at 90 % and 345,000 at 94 %; the report does not say
which, and a draft model takes its share there. So it is a guide to what is worth trying, and not a promise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.serve.needs import TOWER, WHOLE, Needs
from halfbyte.suggest import did_you_mean

UTILIZATION = 0.90
RESERVE_NBYTES = 4_000_000_000
_GIB = 1 << 30
_COUNTS = (1, 2, 4, 8, 16, 32, 64)  # GPUs that people put together
_FP8_NBYTES, _BF16_NBYTES = 1, 2


@dataclass(frozen=True, slots=True)
class Gpus:
    """Some GPUs of one kind."""

    count: int
    name: str
    memory_nbytes: int

    def __str__(self) -> str:
        return f"{self.count}x{self.name}"


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer, for one GPU of several that are all alike. Tokens are None where the config does not tell."""

    gpus: Gpus
    weights_nbytes: int
    kv_nbytes: int  # left for the KV cache; negative where not even the weights fit
    fp8_tokens: int | None
    bf16_tokens: int | None
    context: int | None
    shares_kv: bool  # whether the GPUs split the KV cache
    problem: str | None
    advice: str = ""  # what would fit, where this does not

    @property
    def fits(self) -> bool:
        """Whether weights and at least some tokens find room."""
        return self.problem is None and self.kv_nbytes > 0

    @property
    def contexts(self) -> float | None:
        """Return how many full-length contexts the FP8 cache holds."""
        return self.fp8_tokens / self.context if self.fp8_tokens is not None and self.context else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it, with what was assumed."""
        return {
            "gpus": str(self.gpus),
            "fits": self.fits,
            "problem": self.problem,
            "gpu_memory_nbytes": self.gpus.memory_nbytes,
            "gpu_memory_utilization": UTILIZATION,
            "gpu_reserve_nbytes": RESERVE_NBYTES,
            "gpu_weights_nbytes": self.weights_nbytes,
            "gpu_kv_nbytes": max(0, self.kv_nbytes),
            "kv_tokens_fp8": self.fp8_tokens,
            "kv_tokens_bf16": self.bf16_tokens,
            "context": self.context,
            "full_contexts_fp8": self.contexts,
        }


@cache
def gpu_memory() -> Mapping[str, int]:
    """Return the memory of each GPU that halfbyte knows, in bytes."""
    import yaml  # noqa: PLC0415 - only who asks what fits needs the table

    rows: Mapping[str, float] = yaml.safe_load(files("halfbyte.serve").joinpath("data/gpus.yaml").read_text())
    return {name: int(gib * _GIB) for name, gib in rows.items()}


def parse_gpus(text: str) -> Gpus:
    """Read `8xB200`, in any case and with any spaces, dashes or underscores in the name."""
    count, _, word = text.lower().partition("x")
    if not re.fullmatch(r"\s*[1-9][0-9]{0,4}\s*", count, re.ASCII):
        raise UsageError(f"'{text}' is no number of GPUs", where="--fit", fix="write it like 8xB200")
    names = {_plain(name): name for name in gpu_memory()}
    if _plain(word) not in names:
        fix = did_you_mean(word.strip().upper(), gpu_memory())
        raise UsageError(f"no GPU is named '{word.strip()}'", where="--fit", fix=fix)
    name = names[_plain(word)]
    return Gpus(int(count), name, gpu_memory()[name])


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def fit(needs: Needs, gpus: Gpus, *, utilization: float = UTILIZATION) -> Fit:
    """Divide a checkpoint among GPUs; where it does not fit, say how many would do."""
    found = _divide(needs, gpus, utilization)
    return found if found.fits else replace(found, advice=_advice(needs, gpus, utilization))


def _divide(needs: Needs, gpus: Gpus, utilization: float) -> Fit:
    whole = sum(part.nbytes for part in needs.parts if part.placed in (WHOLE, TOWER))
    weights = -(-(needs.weights_nbytes - whole) // gpus.count) + whole
    left = int(gpus.memory_nbytes * utilization) - RESERVE_NBYTES - weights
    heads_here = -(-needs.kv_heads // gpus.count)  # with more GPUs than heads some hold the same ones
    values = needs.kv_values * heads_here // needs.kv_heads
    problem = None
    if needs.heads and needs.heads % gpus.count:
        problem = f"{needs.heads} attention heads cannot be split over {gpus.count} GPUs"
    elif left <= 0:
        problem = f"each GPU would need {(weights + RESERVE_NBYTES) / 1e9:,.1f} GB, {-left / 1e9:,.1f} GB too many"
    return Fit(
        gpus=gpus,
        weights_nbytes=weights,
        kv_nbytes=left,
        fp8_tokens=max(0, left) // (values * _FP8_NBYTES) if values else None,
        bf16_tokens=max(0, left) // (values * _BF16_NBYTES) if values else None,
        context=needs.context,
        shares_kv=needs.kv_heads > 1 and gpus.count > 1,
        problem=problem,
    )


def _advice(needs: Needs, gpus: Gpus, utilization: float) -> str:
    """Name the fewest GPUs of this kind with room for one full-length context."""
    for count in _COUNTS:
        found = _divide(needs, replace(gpus, count=count), utilization)
        if found.fits and (found.contexts is None or found.contexts >= 1):
            return f"{found.gpus} would do"
    return f"no number of {gpus.name} would do"
