"""Calibration statistics of a layer, additive over parts of a dataset (FP64 sums, 64-bit counts).

Largest values (amax) are taken over all tokens that pass through the model, including padding in padded rows, as in
ModelOpt. Sums per expert and domain are over real tokens only, so that pruning does not depend on how rows were filled.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from halfbyte.methods.gptq import Hessians

Amax = NDArray[np.float32]
Sums = NDArray[np.float64]
Counts = NDArray[np.int64]

# g is a token's router weight, n the L2 norm of the expert's unweighted output, and p the value that the public REAP
# code uses for g (`calibrate.routing`), for the same experts.
SUMS = ("g", "g2", "n", "n2", "gn", "g2n", "g2n2", "p", "pn")
LATER_SUMS = ("p", "pn")  # missing in files of earlier versions
PUBLIC_SUMS = ("p_public", "pn_public")  # over the public code's own expert selection, with `public_reap`
MAXES = ("n", "gn")
_EXPERTS = "experts."
_INPUTS = "input_amax."


@dataclass(slots=True, eq=False)
class ExpertStats:
    """Statistics of E routed experts in B domains. An amax of 0 means not measured."""

    count: Counts  # [E, B]: real tokens
    sums: dict[str, Sums]  # [E, B] by SUMS and PUBLIC_SUMS; LATER_SUMS and PUBLIC_SUMS may be absent
    maxes: dict[str, Sums]  # [E, B] by MAXES
    seen: Counts  # [E]: tokens, including padding in padded rows
    input_amax: Amax  # [E]: inputs of gate and up
    down_amax: Amax  # [E]: inputs of down
    out_amax: Amax  # [E]
    all_down_amax: Amax  # [E]: inputs of down if the expert gets all tokens, for backstop all_experts
    count_public: Counts | None = None  # [E, B]: real tokens that the public code routes to the expert

    @classmethod
    def empty(cls, experts: int, domains: int, *, public: bool = False) -> ExpertStats:
        """Return statistics of no tokens."""

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
        """Build from a file's arrays; raise ValueError if their shapes or dtypes do not match."""
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
        raise ValueError("count is not a matrix of experts and domains")
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
    """Statistics of one decoder layer: amax by module, by its name in the layer, and its routed experts."""

    input_amax: dict[str, float] = field(default_factory=dict[str, float])
    experts: ExpertStats | None = None
    hessians: Hessians | None = None  # in memory only, for GPTQ

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return every array by its name in a file."""
        tensors: dict[str, NDArray[Any]] = {
            _INPUTS + name: np.array(amax, np.float32) for name, amax in sorted(self.input_amax.items())
        }
        if self.experts is not None:
            tensors |= {_EXPERTS + name: array for name, array in self.experts.tensors().items()}
        return tensors

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]]) -> LayerStats:
        """Build from a file's arrays."""
        amax = {name.removeprefix(_INPUTS): float(a) for name, a in tensors.items() if name.startswith(_INPUTS)}
        experts = {name.removeprefix(_EXPERTS): a for name, a in tensors.items() if name.startswith(_EXPERTS)}
        return cls(amax, ExpertStats.of(experts) if experts else None)


def merge(parts: Sequence[LayerStats]) -> LayerStats:
    """Merge statistics of parts of the tokens, adding in order."""
    names = sorted({name for part in parts for name in part.input_amax})
    amax = {name: max(part.input_amax.get(name, 0.0) for part in parts) for name in names}
    experts = [part.experts for part in parts if part.experts is not None]
    return LayerStats(amax, _merge_experts(experts) if experts else None)


def _merge_experts(parts: Sequence[ExpertStats]) -> ExpertStats:
    added, largest = ("count", "seen"), ("input_amax", "down_amax", "out_amax", "all_down_amax")
    counts_public = [part.count_public for part in parts if part.count_public is not None]
    return ExpertStats(
        # Drop sums that are missing in any part.
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
    """Add sequentially, so that FP64 sums are reproducible to the last bit."""
    return functools.reduce(np.add, arrays)
