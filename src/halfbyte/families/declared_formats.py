"""Compare the format that config.json declares, as engines read it, with the stored tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from halfbyte.checkpoint.folder import CONFIG, Checkpoint
from halfbyte.errors import CheckpointError
from halfbyte.families.linears import PLAIN
from halfbyte.families.model import Model

if TYPE_CHECKING:
    from halfbyte.ui.console import Level

HF_QUANT_CONFIG = "hf_quant_config.json"
# compressed-tensors declares a format; for the other methods it is implied.
_BY_FORMAT = {
    "pack-quantized": "int4",
    "float-quantized": "fp8_channel",
    "nvfp4-pack-quantized": "nvfp4_ct",
    "mxfp4-pack-quantized": "mxfp4_ct",
}
_BY_METHOD = {"fp8": "fp8_block", "modelopt": "nvfp4", "modelopt_fp4": "nvfp4", "quark": "mxfp4"}


def quantization_config(config: Mapping[str, Any], model: Model) -> Mapping[str, Any] | None:
    """Return the quantization_config that engines read, at the top level or in the text model's section."""
    for section in (config, model.family.text(config)):
        block = section.get("quantization_config")
        if isinstance(block, Mapping):
            return cast("Mapping[str, Any]", block)
    return None


def stored_as_declared(checkpoint: Checkpoint, model: Model) -> tuple[Level, str]:
    """Report whether engines that follow config.json would read the tensors correctly."""
    stored = sorted({linear.format for linear in model.linears.values()} - set(PLAIN))
    found = " and ".join(stored) or "unquantized"
    block = quantization_config(checkpoint.config, model)
    if block is None:
        if not stored:
            return "good", "nothing is quantized, and config.json declares no quantization"
        if (checkpoint.root / HF_QUANT_CONFIG).is_file():
            return "note", f"{HF_QUANT_CONFIG}, not config.json, declares {found}"
        return "bad", f"config.json has no quantization_config, but the tensors are {found}: engines cannot load it"
    method, format = str(block.get("quant_method")), str(block.get("format"))
    declared = _BY_FORMAT.get(format) if method == "compressed-tensors" else _BY_METHOD.get(method)
    name = f"{method} {format}" if method == "compressed-tensors" else method
    if declared is None:
        return "note", f"config.json declares {name}, which halfbyte does not support; the tensors are {found}"
    if stored != [declared]:
        return "bad", f"config.json declares {name}, which means {declared}, but the tensors are {found}"
    return "good", f"config.json declares {name}, as stored"


def refuse_other_config(checkpoint: Checkpoint, model: Model) -> None:
    """Raise if the weights are not stored as config.json declares."""
    level, sentence = stored_as_declared(checkpoint, model)
    if level == "bad":
        fix = "config.json does not match the weights: download both again"
        raise CheckpointError(sentence, where=str(checkpoint.root / CONFIG), fix=fix)
