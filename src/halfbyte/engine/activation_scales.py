"""Compute input scales and KV-cache scales from calibration statistics or recipe constants.

Engines read NVFP4 activations as code * E4M3 block scale * tensor scale, so the tensor scale must cover the largest
value: amax / (6 * 448). ModelOpt stores that, compressed-tensors its inverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.errors import UsageError
from halfbyte.families.family import DOWN
from halfbyte.families.linears import StoredLinear
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.rules import ENCODE, ROUTED, Job
from halfbyte.recipe.decisions import InputScale, Quantize

Scales = dict[str, NDArray[np.float32]]
LARGEST_E4M3 = np.float32(448)
NEVER_SEEN = 0.5  # ModelOpt's amax for experts of a layer in which no expert received tokens


def scales_of(job: Job, stats: LayerStats, quantize: Quantize) -> Scales:
    """Return the tensors of a job that depend on calibration data, by name."""
    if not job.linears:  # K and V
        return {output.name: kv_scale(output.name, stats, quantize) for output in job.outputs}
    return input_scales(job.linears, stats, quantize) if quantize.activations == "calibrated" else {}


def calibrated_names(job: Job, quantize: Quantize) -> list[str]:
    """Return the names of the tensors of a job that `scales_of` returns."""
    if job.action != ENCODE:
        return []
    if not job.linears:
        return [output.name for output in job.outputs]
    suffix = FORMATS[quantize.format].input_scale_suffix
    return [f"{linear.module}.{suffix}" for linear in job.linears] if quantize.activations == "calibrated" else []


def fixed_scales(job: Job, quantize: Quantize) -> Scales:
    """Return a job's input scales that the recipe sets to a constant, by name."""
    encodes = job.action == ENCODE and quantize.activations == "fixed"
    return dict(fixed_scale(linear, quantize) for linear in job.linears) if encodes else {}


def fixed_scale(linear: StoredLinear, quantize: Quantize) -> tuple[str, NDArray[np.float32]]:
    """Return the name and value of a linear's constant input scale."""
    assert quantize.input_scale is not None
    assert quantize.input_scale.fixed is not None
    spec = FORMATS[quantize.format].input_scale
    assert spec is not None
    scale = np.full(spec.shape, quantize.input_scale.fixed, np.float32)
    return f"{linear.module}.{spec.suffix}", np.reciprocal(scale) if spec.reciprocal else scale


def input_scales(linears: Iterable[StoredLinear], stats: LayerStats, quantize: Quantize) -> Scales:
    """Return the calibrated input scales of linears, by name."""
    format = FORMATS[quantize.format]
    input_scale = format.reference().input_scale
    assert input_scale is not None
    return {
        f"{linear.module}.{format.input_scale_suffix}": input_scale(_amax(linear, stats, quantize))
        for linear in linears
    }


def kv_scale(name: str, stats: LayerStats, quantize: Quantize) -> NDArray[np.float32]:
    """Return the KV-cache scale with this tensor name (`k_scale` or `v_scale` of a layer)."""
    *_, attention, _, leaf = name.split(".")  # ModelOpt's names end in ATTENTION.k_proj.k_scale
    amax = _measured(stats.input_amax.get(f"{attention}.{leaf[0]}", 0.0), name)
    scale = np.array(np.float32(amax) / LARGEST_E4M3, np.float32)
    return np.maximum(scale, np.float32(quantize.kv_scale_min or 0.0))


def _amax(linear: StoredLinear, stats: LayerStats, quantize: Quantize) -> float:
    if linear.role == ROUTED:
        assert stats.experts is not None
        assert quantize.input_scale is not None
        return expert_amax(stats.experts, linear, quantize.input_scale)
    return _measured(stats.input_amax.get(linear.in_layer, 0.0), linear.module)


def expert_amax(experts: ExpertStats, linear: StoredLinear, rule: InputScale) -> float:
    """Return the input amax of an expert's linear by the recipe's rule."""
    assert linear.expert is not None
    expert, module, down = linear.expert, linear.module, linear.projection == DOWN
    own = experts.down_amax if down else experts.input_amax
    largest = float(own.max())
    if rule.per == "layer":
        return _measured(largest, module)
    if not needs_backstop(experts, linear, rule):
        return _measured(float(own[expert]), module)
    if rule.backstop == "all_experts":
        backstop = float(experts.all_down_amax[expert]) if down else largest
        return _measured(backstop, module, "run `halfbyte calibrate` with this recipe and its min_tokens")
    return NEVER_SEEN if rule.backstop == "modelopt" and not largest else _measured(largest, module)


def needs_backstop(experts: ExpertStats, linear: StoredLinear, rule: InputScale) -> bool:
    """Return whether the expert of a linear received too few tokens, or only zeros."""
    assert linear.expert is not None
    own = experts.down_amax if linear.projection == DOWN else experts.input_amax
    few = rule.min_tokens is not None and int(experts.seen[linear.expert]) < rule.min_tokens
    return rule.per == "expert" and (few or not own[linear.expert])


def _measured(amax: float, module: str, fix: str = "use more or different calibration data") -> float:
    """Return `amax`; raise if it is zero, which would make activations infinite, or not a finite positive number."""
    if amax == 0:
        raise UsageError("calibration recorded no inputs, or only zeros", where=module, fix=fix)
    if not (amax > 0 and math.isfinite(amax)):
        what = f"the statistics contain the invalid amax {amax}"
        raise UsageError(what, where=module, fix="the statistics are damaged: run the calibration again")
    return amax
