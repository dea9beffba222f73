"""From statistics to the scales that a checkpoint stores: one input scale a linear, and two scales of a KV cache.

Engines read NVFP4 activations as code * E4M3 block scale * tensor scale, so that the tensor scale must let the largest
value through: amax / (6 * 448). ModelOpt stores that, compressed-tensors its inverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.errors import UsageError
from halfbyte.models.linears import StoredLinear
from halfbyte.numerics.reference.nvfp4 import CODE_RANGE, global_scale
from halfbyte.plan.rules import CALIBRATED_INPUTS, ROUTED, Job
from halfbyte.recipe.decisions import InputScale, Quantize

Scales = dict[str, NDArray[np.float32]]
INPUT_SCALES = {name: suffix for name, (suffix, _) in CALIBRATED_INPUTS.items()}
LARGEST_E4M3 = np.float32(448)
NEVER_SEEN = 0.5  # ModelOpt's amax for an expert of whose layer no expert saw a token
DOWN = "down_proj"
_ATTENTION = "self_attn"


def scales_of(job: Job, stats: LayerStats, quantize: Quantize) -> Scales:
    """Return every tensor of a job that data decides, by name."""
    if not job.linears:  # K and V
        return {output.name: kv_scale(output.name, stats, quantize) for output in job.outputs}
    return input_scales(job.linears, stats, quantize) if quantize.activations == "calibrated" else {}


def input_scales(linears: Iterable[StoredLinear], stats: LayerStats, quantize: Quantize) -> Scales:
    """Return the input scales of linears, by name."""
    suffix = INPUT_SCALES[quantize.format]
    return {f"{one.module}.{suffix}": _input_scale(_amax(one, stats, quantize), quantize) for one in linears}


def _input_scale(amax: float, quantize: Quantize) -> NDArray[np.float32]:
    if quantize.format == "nvfp4_ct":
        return np.array([global_scale(np.float32(amax))], np.float32)
    return np.array(np.float32(amax) / CODE_RANGE, np.float32)


def kv_scale(name: str, stats: LayerStats, quantize: Quantize) -> NDArray[np.float32]:
    """Return the scale of a layer's keys or values, by the name it is stored under."""
    which = name.rpartition(".")[2][0]  # k_scale or v_scale
    seen = _measured(stats.input_amax.get(f"{_ATTENTION}.{which}", 0.0), name)
    scale = np.array(np.float32(seen) / LARGEST_E4M3, np.float32)
    return np.maximum(scale, np.float32(quantize.kv_scale_min or 0.0))


def _amax(linear: StoredLinear, stats: LayerStats, quantize: Quantize) -> float:
    if linear.role == ROUTED:
        assert linear.expert is not None
        assert stats.experts is not None
        assert quantize.input_scale is not None
        return expert_amax(stats.experts, linear.expert, linear.module, quantize.input_scale)
    _, _, inside = linear.module.partition(".layers.")
    return _measured(stats.input_amax.get(inside.partition(".")[2], 0.0), linear.module)


def expert_amax(experts: ExpertStats, expert: int, module: str, rule: InputScale) -> float:
    """Return the largest input of one of an expert's linears, by the recipe's rule."""
    down = module.endswith(DOWN)
    own = experts.down_amax if down else experts.input_amax
    largest = float(own.max())
    if rule.per == "layer":
        return _measured(largest, module)
    if not needs_backstop(experts, expert, module, rule):
        return _measured(float(own[expert]), module)
    if rule.backstop == "all_experts":
        found = float(experts.all_down_amax[expert]) if down else largest
        return _measured(found, module, "measure with this recipe: `halfbyte calibrate` with its min_tokens")
    return NEVER_SEEN if rule.backstop == "modelopt" and not largest else _measured(largest, module)


def needs_backstop(experts: ExpertStats, expert: int, module: str, rule: InputScale) -> bool:
    """Whether too few tokens came by, or nothing but zeros did."""
    own = experts.down_amax if module.endswith(DOWN) else experts.input_amax
    few = rule.min_tokens is not None and int(experts.seen[expert]) < rule.min_tokens
    return rule.per == "expert" and (few or not own[expert])


def _measured(amax: float, module: str, fix: str = "give more calibration data, or other data") -> float:
    """A scale of zero would make every activation infinite: better no checkpoint than that one."""
    if amax == 0:
        raise UsageError("calibration saw nothing but zeros, or nothing", where=module, fix=fix)
    if not (amax > 0 and math.isfinite(amax)):
        what, again = f"the statistics say that the largest absolute value is {amax}", "measure again: they are damaged"
        raise UsageError(what, where=module, fix=again)
    return amax
