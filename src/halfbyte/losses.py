"""What encoding lost, by layer and role, as the journal keeps it: sums, so that the parts of a layer add up.

A layer may lie in several shards, and a shard may hold several layers. So a journal line has the sums of its own
linears, and who reads the journal adds them. A linear belongs to the shard of its codes: it is counted once, however
its tensors are laid out, and whichever run wrote them.

    "layers": [{"layer": 3, "role": "routed_experts", "linears": 1152, "weights": 16911433728,
                "signal": 1234.5, "error": 7.5, "worst": ["model.layers.3.mlp.experts.7.up_proj", 20.1]}, ...]

`signal` and `error` are sums of squares, null where they are not finite; `layer` is null outside the decoder layers.
Lines of earlier versions have no `layers`: what they lost by layer is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from halfbyte.models.architecture import Architecture
from halfbyte.numerics.encoded import Quality

LAYERS = "layers"  # of a journal line


@dataclass(frozen=True, slots=True)
class Loss:
    """Of the linears of one role in one layer."""

    layer: int | None
    role: str
    linears: int
    weights: int
    signal: float
    error: float
    worst: tuple[str, float] | None  # the linear with the lowest SQNR; None: none lost anything

    @property
    def sqnr_db(self) -> float:
        """Signal over noise in dB; infinite where nothing was lost."""
        return Quality(self.weights, self.signal, self.error, 0.0, 0).sqnr_db


def losses(made: Iterable[tuple[str, Quality]], architecture: Architecture) -> list[dict[str, Any]]:
    """Return what some linears lost, by layer and role, for a journal line; the order of the linears is no matter."""
    found: dict[tuple[int, str], list[tuple[str, Quality]]] = {}
    for module, quality in made:
        seat = architecture.linear(module)
        assert seat is not None, module  # only linears are encoded
        layer = -1 if seat.layer is None else seat.layer
        found.setdefault((layer, seat.role), []).append((module, quality))
    return [
        {"layer": None if layer < 0 else layer, "role": role, **_sums(linears)}
        for (layer, role), linears in sorted(found.items())
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
    """Add exactly, whatever the order in which threads ended; JSON has no infinity."""
    held = list(values)
    return math.fsum(held) if all(map(math.isfinite, held)) else None


def losses_of_journal(lines: Iterable[Mapping[str, Any]], shards: Iterable[str]) -> list[Loss] | None:
    """Return what all linears lost, by layer and role; None where a shard's line does not say it.

    Of a shard that was made again, the last line counts.
    """
    last = {str(line.get("shard")): line for line in lines}
    found: dict[tuple[int, str], list[Loss]] = {}
    for shard in shards:
        said: Any = last.get(shard, {}).get(LAYERS)
        if not isinstance(said, list):
            return None
        for entry in cast("list[Any]", said):
            loss = _read(entry)
            if loss is None:
                return None
            found.setdefault((-1 if loss.layer is None else loss.layer, loss.role), []).append(loss)
    return [_together(parts) for _, parts in sorted(found.items())]


def _read(entry: Any) -> Loss | None:
    """Return what a journal line says of a role of a layer; None for what is not of that shape, or not finite."""
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


def _together(parts: Sequence[Loss]) -> Loss:
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
