"""Turn a layer's calibration statistics into the inputs of its jobs."""

from __future__ import annotations

from collections.abc import Callable

from halfbyte.calibrate.stats import LayerStats
from halfbyte.methods.activation_scales import scales_of
from halfbyte.methods.apply import JobInputs
from halfbyte.methods.gptq import LayerFactors
from halfbyte.plan.rules import ENCODE, Job, method_of
from halfbyte.recipe.decisions import COMPENSATED, Quantize


def inputs_from_stats(stats: LayerStats, quantize: Quantize | None) -> Callable[[Job], JobInputs]:
    """Return a function that computes the scales and GPTQ factors of any job of a layer."""
    factors = LayerFactors(stats.moments)

    def inputs_of(job: Job) -> JobInputs:
        if quantize is None or job.action != ENCODE:
            return JobInputs()
        compensated = bool(job.linears) and method_of(job.role, quantize) == COMPENSATED
        return JobInputs(scales_of(job, stats, quantize), factors.of(job) if compensated else None)

    return inputs_of
