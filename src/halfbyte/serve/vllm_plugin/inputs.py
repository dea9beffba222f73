"""Quantize the inputs of linears like the hardware, with the functions of `halfbyte compare`."""

from __future__ import annotations

import os

import torch

from halfbyte.compare.activations import DYNAMIC, INPUT_SCALES, Fake, mxfp4, nvfp4
from halfbyte.errors import UsageError

SWITCH = "HALFBYTE_EMULATE_ACTIVATIONS"


def activations_wanted() -> bool:
    """Return whether inputs are quantized, which HALFBYTE_EMULATE_ACTIVATIONS can disable."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise UsageError(f"{SWITCH} is '{value}'", where="environment", fix="set it to on or off")
    return value == "on"


def fake_of(format: str, scale: torch.Tensor | None) -> Fake | None:
    """Return the function that fake-quantizes the inputs of linears in a format, for their stored input scales."""
    if format in DYNAMIC:
        return mxfp4
    if format not in INPUT_SCALES or scale is None:
        return None
    # Engines fuse gate and up and quantize their input once, with the larger scale.
    tensor_scale = (scale if format == "nvfp4" else 1 / scale).amax()
    return lambda x: nvfp4(x, tensor_scale)
