"""Quantize the inputs of linears like the hardware, with the functions of `halfbyte compare`."""

from __future__ import annotations

import os

import torch

from halfbyte.compare.activations import Fake, emulated_inputs, is_emulated, tensor_scale
from halfbyte.errors import UsageError
from halfbyte.formats.registry import FORMATS

SWITCH = "HALFBYTE_EMULATE_ACTIVATIONS"


def activations_wanted() -> bool:
    """Return whether inputs are quantized, which HALFBYTE_EMULATE_ACTIVATIONS can disable."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise UsageError(f"{SWITCH} is '{value}'", where="environment", fix="set it to on or off")
    return value == "on"


def fake_of(format: str, scale: torch.Tensor | None) -> Fake | None:
    """Return the function that fake-quantizes the inputs of linears in a format, for their stored input scales."""
    if not is_emulated(format) or (FORMATS[format].input_scale is not None and scale is None):
        return None
    # Engines fuse gate and up and quantize their input once, with the larger scale.
    return emulated_inputs(format, None if scale is None else tensor_scale(format, scale).amax())
