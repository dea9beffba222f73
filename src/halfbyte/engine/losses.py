"""Quantization error by layer and role, stored in the journal as sums.

A layer can span several shards, and a shard can hold several layers. Each journal line therefore has the sums of its
own linears, and readers add them up. A linear counts once, in the shard of its codes, for any layout and any number of
resumed runs.

    "layers": [{"layer": 3, "role": "routed_experts", "linears": 1152, "weights": 16911433728,
                "signal": 1234.5, "error": 7.5, "worst": ["MODULE", 20.1]}, ...]

`signal` and `error` are sums of squares, or null if not finite. `layer` is null outside the decoder layers. Journals of
earlier versions have no `layers`; their error by layer is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from halfbyte.families.family import Family
from halfbyte.formats.encoded import Quality

LAYERS = "layers"  # key of a journal line


@dataclass(frozen=True, slots=True)
class Loss:
    """The quantization error of the linears of one role in one layer."""

    layer: int | None
    role: str
    linears: int
    weights: int
    signal: float
    error: float
    worst: tuple[str, float] | None  # the linear with the lowest SQNR; None if all are lossless

    @property
    def sqnr_db(self) -> float:
        """Return the signal-to-quantization-noise ratio in dB; infinite if lossless."""
        return Quality(self.weights, self.signal, self.error, 0.0, 0).sqnr_db


def losses(encoded: Iterable[tuple[str, Quality]], family: Family) -> list[dict[str, Any]]:
    """Return the error of linears by layer and role for a journal line; the order of `encoded` does not matter."""
    groups: dict[tuple[int, str], list[tuple[str, Quality]]] = {}
    for module, quality in encoded:
        linear = family.linear(module)
        assert linear is not None, module  # only linears are encoded
        layer = -1 if linear.layer is None else linear.layer
        groups.setdefault((layer, linear.role), []).append((module, quality))
    return [
        {"layer": None if layer < 0 else layer, "role": role, **_sums(linears)}
        for (layer, role), linears in sorted(groups.items())
    ]


def _sums(linears: Sequence[tuple[str, Quality]]) -> dict[str, Any]:
    rated = sorted((quality.sqnr_db, module) for module, quality in linears)
    sqnr, module = rated[0]
    return {
        "linears": len(linears),
        "weights": sum(quality.weights for _, quality in linears),
        "signal": _sum(quality.signal for _, quality in linears),
        "error": _sum(quality.error for _, quality in linears),
        "worst": [module, sqnr] if math.isfinite(sqnr) else None,
    }


def _sum(values: Iterable[float]) -> float | None:
    """Return the exact sum, independent of thread order; None if not finite, because JSON has no infinity."""
    terms = list(values)
    return math.fsum(terms) if all(map(math.isfinite, terms)) else None


def losses_of_journal(lines: Iterable[Mapping[str, Any]], shards: Iterable[str]) -> list[Loss] | None:
    """Return the error of all linears by layer and role; None if a shard's line lacks it.

    The last line of a rewritten shard counts.
    """
    last = {str(line.get("shard")): line for line in lines}
    groups: dict[tuple[int, str], list[Loss]] = {}
    for shard in shards:
        entries: Any = last.get(shard, {}).get(LAYERS)
        if not isinstance(entries, list):
            return None
        for entry in cast("list[Any]", entries):
            loss = _read(entry)
            if loss is None:
                return None
            groups.setdefault((-1 if loss.layer is None else loss.layer, loss.role), []).append(loss)
    return [_merge(parts) for _, parts in sorted(groups.items())]


def _read(entry: Any) -> Loss | None:
    """Parse an entry of a journal line; return None if it is malformed or not finite."""
    try:
        worst = entry["worst"]
        loss = Loss(
            None if entry["layer"] is None else int(entry["layer"]),
            str(entry["role"]),
            int(entry["linears"]),
            int(entry["weights"]),
            float(entry["signal"]),
            float(entry["error"]),
            None if worst is None else (str(worst[0]), float(worst[1])),
        )
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    return loss if math.isfinite(loss.signal) and math.isfinite(loss.error) else None


def _merge(parts: Sequence[Loss]) -> Loss:
    worst = min((part.worst for part in parts if part.worst is not None), key=lambda pair: pair[1], default=None)
    return Loss(
        parts[0].layer,
        parts[0].role,
        sum(part.linears for part in parts),
        sum(part.weights for part in parts),
        math.fsum(part.signal for part in parts),
        math.fsum(part.error for part in parts),
        worst,
    )
