"""What config.json says about the stored formats, as engines read it, against what the tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from halfbyte.errors import CheckpointError
from halfbyte.models.linears import PLAIN
from halfbyte.models.model import Model
from halfbyte.source.checkpoint import CONFIG, Checkpoint

if TYPE_CHECKING:
    from halfbyte.terminal.console import Level

HF_QUANT_CONFIG = "hf_quant_config.json"
# compressed-tensors names the format; the other methods imply theirs.
_BY_FORMAT = {
    "pack-quantized": "int4",
    "float-quantized": "fp8_channel",
    "nvfp4-pack-quantized": "nvfp4_ct",
    "mxfp4-pack-quantized": "mxfp4_ct",
}
_BY_METHOD = {"fp8": "fp8_block", "modelopt": "nvfp4", "modelopt_fp4": "nvfp4", "quark": "mxfp4"}


def quantization_config(config: Mapping[str, Any], model: Model) -> Mapping[str, Any] | None:
    """Return the block that engines read: at the top, or inside the text model's part."""
    for place in (config, model.architecture.text(config)):
        block = place.get("quantization_config")
        if isinstance(block, Mapping):
            return cast("Mapping[str, Any]", block)
    return None


def stored_as_declared(checkpoint: Checkpoint, model: Model) -> tuple[Level, str]:
    """Say whether an engine that believes config.json would read the tensors as they are."""
    stored = sorted({linear.format for linear in model.linears.values()} - set(PLAIN))
    found = " and ".join(stored) or "no quantized tensors"
    block = quantization_config(checkpoint.config, model)
    if block is None:
        if not stored:
            return "good", "nothing is quantized, and config.json says so"
        if (checkpoint.root / HF_QUANT_CONFIG).is_file():
            return "note", f"{HF_QUANT_CONFIG}, not config.json, tells engines of {found}"
        return "bad", f"config.json has no quantization_config, but there is {found}: engines would not load it"
    method, format = str(block.get("quant_method")), str(block.get("format"))
    declared = _BY_FORMAT.get(format) if method == "compressed-tensors" else _BY_METHOD.get(method)
    name = f"{method} {format}" if method == "compressed-tensors" else method
    if declared is None:
        return "note", f"config.json declares {name}, which halfbyte does not know; there is {found}"
    if stored != [declared]:
        return "bad", f"config.json declares {name}, which is {declared}, but there is {found}"
    return "good", f"config.json declares {name}, and that is what is stored"


def refuse_other_config(checkpoint: Checkpoint, model: Model) -> None:
    """Refuse weights that are stored otherwise than config.json says."""
    level, sentence = stored_as_declared(checkpoint, model)
    if level == "bad":
        fix = "config.json and the weights do not belong together: download both again"
        raise CheckpointError(sentence, where=str(checkpoint.root / CONFIG), fix=fix)
