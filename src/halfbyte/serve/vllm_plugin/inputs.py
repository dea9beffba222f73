"""What goes into quantized linears, as the hardware would quantize it: the functions of `halfbyte compare`."""

from __future__ import annotations

import os

import torch

from halfbyte.compare.activations import DYNAMIC, INPUT_SCALES, Fake, mxfp4, nvfp4
from halfbyte.errors import UsageError

SWITCH = "HALFBYTE_EMULATE_ACTIVATIONS"


def activations_wanted() -> bool:
    """Whether inputs are quantized; the environment may say that they stay as they are."""
    said = os.environ.get(SWITCH, "on")
    if said not in ("on", "off"):
        raise UsageError(f"{SWITCH} is '{said}'", where="environment", fix="set it to on or off")
    return said == "on"


def fake_of(format: str, scale: torch.Tensor | None) -> Fake | None:
    """Return what is done to the input of linears in a format, whose calibrated scales are given as they are stored."""
    if format in DYNAMIC:
        return mxfp4
    if format not in INPUT_SCALES or scale is None:
        return None
    # Engines fuse gate and up, and quantize their input once, under the larger scale.
    tensor_scale = (scale if format == "nvfp4" else 1 / scale).amax()
    return lambda x: nvfp4(x, tensor_scale)
