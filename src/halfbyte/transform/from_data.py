"""From what was measured in a layer to what its jobs are given."""

from __future__ import annotations

from collections.abc import Callable

from halfbyte.calibrate.stats import LayerStats
from halfbyte.plan.rules import ENCODE, Job, method_of
from halfbyte.recipe.decisions import COMPENSATED, Quantize
from halfbyte.transform.apply import Given
from halfbyte.transform.compensated import LayerMoves
from halfbyte.transform.scales import scales_of


def from_data(stats: LayerStats, quantize: Quantize | None) -> Callable[[Job], Given]:
    """Return what knows the scales, and the moves, of every job of a layer."""
    moves = LayerMoves(stats.moments)

    def given(job: Job) -> Given:
        if quantize is None or job.action != ENCODE:
            return Given()
        compensated = bool(job.linears) and method_of(job.role, quantize) == COMPENSATED
        return Given(scales_of(job, stats, quantize), moves.of(job) if compensated else None)

    return given
