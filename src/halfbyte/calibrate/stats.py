"""What calibration measures in a layer: sums in FP64 and counts in 64 bits, so that parts of a data set add up.

Two kinds of tokens count. Largest values (amax) are over all tokens that flow through the model, because that is what
an engine's scale must cover and what ModelOpt measures, padding included where rows are padded. Sums per expert and
domain are over real tokens only, because pruning by them must not care how rows were filled.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from halfbyte.calibrate.moments import Moments

Amax = NDArray[np.float32]
Sums = NDArray[np.float64]
Counts = NDArray[np.int64]

# g is the router's weight of a token, n the L2 norm of the expert's output for it, before that weight; p is what the
# public REAP code would take for g (`forward.softmax`), for the same experts.
SUMS = ("g", "g2", "n", "n2", "gn", "g2n", "g2n2", "p", "pn")
LATER_SUMS = ("p", "pn")  # which the files of earlier versions lack
PUBLIC_SUMS = ("p_public", "pn_public")  # over the public code's own selection; where a recipe asks for it
MAXES = ("n", "gn")
_EXPERTS = "experts."
_INPUTS = "input_amax."


@dataclass(slots=True, eq=False)
class ExpertStats:
    """Of E routed experts, in B domains. An amax of 0 is one that was never measured."""

    count: Counts  # [E, B]: real tokens
    sums: dict[str, Sums]  # [E, B] by SUMS and PUBLIC_SUMS; LATER_SUMS and PUBLIC_SUMS may be absent
    maxes: dict[str, Sums]  # [E, B] by MAXES
    seen: Counts  # [E]: tokens, padding included where it counts
    input_amax: Amax  # [E]: of what gate_proj and up_proj are given
    down_amax: Amax  # [E]: of what down_proj is given
    out_amax: Amax  # [E]
    all_down_amax: (
        Amax  # [E]: of what down_proj would be given if the expert had all tokens; where a recipe asks for it
    )
    count_public: Counts | None = None  # [E, B]: real tokens that the public code would select

    @classmethod
    def empty(cls, experts: int, domains: int, *, public: bool = False) -> ExpertStats:
        """Return what was measured before the first token."""

        def zeros() -> Sums:
            return np.zeros((experts, domains), np.float64)

        def amax() -> Amax:
            return np.zeros(experts, np.float32)

        return cls(
            count=np.zeros((experts, domains), np.int64),
            sums={name: zeros() for name in (*SUMS, *(PUBLIC_SUMS if public else ()))},
            maxes={name: zeros() for name in MAXES},
            seen=np.zeros(experts, np.int64),
            input_amax=amax(),
            down_amax=amax(),
            out_amax=amax(),
            all_down_amax=amax(),
            count_public=np.zeros((experts, domains), np.int64) if public else None,
        )

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return every array by its name in a file."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        if self.count_public is not None:
            plain[_COUNT_PUBLIC] = self.count_public
        sums = {f"sum_{name}": array for name, array in self.sums.items()}
        return {**plain, **sums, **{f"max_{name}": self.maxes[name] for name in MAXES}}

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]]) -> ExpertStats:
        """Return what a file holds; ValueError where its arrays are not of the same experts and domains."""
        _check_arrays(tensors)
        return cls(
            sums={
                name: tensors[f"sum_{name}"]
                for name in (*SUMS, *PUBLIC_SUMS)
                if f"sum_{name}" in tensors or name not in (*LATER_SUMS, *PUBLIC_SUMS)
            },
            count_public=tensors.get(_COUNT_PUBLIC),
            maxes={name: tensors[f"max_{name}"] for name in MAXES},
            **{name: tensors[name] for name in _PLAIN},
        )


def _check_arrays(tensors: Mapping[str, NDArray[Any]]) -> None:
    experts_domains = tensors["count"].shape
    if len(experts_domains) != 2:  # noqa: PLR2004 - experts and domains
        raise ValueError("count is not by expert and domain")
    for name, array in tensors.items():
        shape = experts_domains[:1] if name in _BY_EXPERT else experts_domains
        dtype = np.int64 if name in _COUNTS else np.float32 if name in _BY_EXPERT else np.float64
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)}, not {np.dtype(dtype)} {list(shape)}")


_COUNT_PUBLIC = "count_public"
_COUNTS = ("count", "seen", _COUNT_PUBLIC)
_BY_EXPERT = ("seen", "input_amax", "down_amax", "out_amax", "all_down_amax")
_PLAIN = ("count", "seen", "input_amax", "down_amax", "out_amax", "all_down_amax")


@dataclass(slots=True, eq=False)
class LayerStats:
    """Of one decoder layer: amax by module ("mlp.down_proj", "self_attn.k", ...), and its routed experts if it has."""

    input_amax: dict[str, float] = field(default_factory=dict[str, float])
    experts: ExpertStats | None = None
    moments: Moments | None = None  # in memory only, where weights are compensated

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return every array by its name in a file."""
        found: dict[str, NDArray[Any]] = {
            _INPUTS + name: np.array(amax, np.float32) for name, amax in sorted(self.input_amax.items())
        }
        if self.experts is not None:
            found |= {_EXPERTS + name: array for name, array in self.experts.tensors().items()}
        return found

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]]) -> LayerStats:
        """Return what a file holds."""
        amax = {name.removeprefix(_INPUTS): float(a) for name, a in tensors.items() if name.startswith(_INPUTS)}
        experts = {name.removeprefix(_EXPERTS): a for name, a in tensors.items() if name.startswith(_EXPERTS)}
        return cls(amax, ExpertStats.of(experts) if experts else None)


def merge(parts: Sequence[LayerStats]) -> LayerStats:
    """Return the statistics of all tokens from those of parts of them, added in the order given."""
    names = sorted({name for part in parts for name in part.input_amax})
    amax = {name: max(part.input_amax.get(name, 0.0) for part in parts) for name in names}
    experts = [part.experts for part in parts if part.experts is not None]
    return LayerStats(amax, _merge_experts(experts) if experts else None)


def _merge_experts(parts: Sequence[ExpertStats]) -> ExpertStats:
    added, largest = ("count", "seen"), ("input_amax", "down_amax", "out_amax", "all_down_amax")
    counts_public = [part.count_public for part in parts if part.count_public is not None]
    return ExpertStats(
        # A sum that one part lacks is no sum over all tokens.
        sums={
            name: _added(part.sums[name] for part in parts)
            for name in (*SUMS, *PUBLIC_SUMS)
            if all(name in part.sums for part in parts)
        },
        count_public=_added(counts_public) if len(counts_public) == len(parts) else None,
        maxes={name: np.maximum.reduce([part.maxes[name] for part in parts]) for name in MAXES},
        **{name: _added(getattr(part, name) for part in parts) for name in added},
        **{name: np.maximum.reduce([getattr(part, name) for part in parts]) for name in largest},
    )


def _added(arrays: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Add one after the other: in another order, FP64 sums could differ in their last bit."""
    return functools.reduce(np.add, arrays)
