"""All number formats that halfbyte reads or writes. To add one, write its module and list it here."""

from __future__ import annotations

from collections.abc import Mapping

from halfbyte.formats.format import Activations, Format
from halfbyte.formats.fp8 import FP8_BLOCK, FP8_CHANNEL
from halfbyte.formats.int4 import INT4
from halfbyte.formats.mxfp4 import MXFP4, MXFP4_CT
from halfbyte.formats.nvfp4 import NVFP4, NVFP4_CT
from halfbyte.formats.plain import BF16, F16, F32

# The order is that of tables, and in which the format of a stored linear is identified.
FORMATS: Mapping[str, Format] = {
    format.name: format for format in (BF16, F16, F32, INT4, FP8_BLOCK, FP8_CHANNEL, NVFP4, NVFP4_CT, MXFP4, MXFP4_CT)
}


def written_formats() -> list[str]:
    """Return the names of the formats that a recipe can write."""
    return [name for name, format in FORMATS.items() if format.recipe is not None]


def input_scale_suffixes() -> list[str]:
    """Return the suffixes of stored input scales in any format."""
    return [format.input_scale.suffix for format in FORMATS.values() if format.input_scale is not None]


def activation_formats() -> dict[str, Activations]:
    """Return the formats of quantized activations by name."""
    return {row.activations.name: row.activations for row in FORMATS.values() if row.activations is not None}
