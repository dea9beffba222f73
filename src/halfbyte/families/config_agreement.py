"""Compare the format that config.json declares, as engines read it, with the stored tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from halfbyte.checkpoint.folder import CONFIG, Checkpoint
from halfbyte.errors import CheckpointError
from halfbyte.families.linears import PLAIN
from halfbyte.families.model import Model
from halfbyte.formats.compressed_tensors import METHOD
from halfbyte.formats.registry import FORMATS

if TYPE_CHECKING:
    from halfbyte.ui.console import Level

HF_QUANT_CONFIG = "hf_quant_config.json"
_SAME_METHOD = {"modelopt_fp4": "modelopt"}  # vLLM's name


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
    declared = _declared(method, format)
    name = f"{method} {format}" if method == METHOD else method
    if declared is None:
        return "note", f"config.json declares {name}, which halfbyte does not support; the tensors are {found}"
    if stored != [declared]:
        return "bad", f"config.json declares {name}, which means {declared}, but the tensors are {found}"
    return "good", f"config.json declares {name}, as stored"


def _declared(method: str, format: str) -> str | None:
    """Return the format of a block. compressed-tensors declares it; the other methods imply it."""
    for name, row in FORMATS.items():
        for own in row.declared[:1]:
            if own.method == _SAME_METHOD.get(method, method) and (method != METHOD or own.name == format):
                return name
    return None


def refuse_other_config(checkpoint: Checkpoint, model: Model) -> None:
    """Raise if the weights are not stored as config.json declares."""
    level, sentence = stored_as_declared(checkpoint, model)
    if level == "bad":
        fix = "config.json does not match the weights: download both again"
        raise CheckpointError(sentence, where=str(checkpoint.root / CONFIG), fix=fix)
