"""The stored linears of a checkpoint by their vLLM names; inconsistent tensors are refused before loading.

They must agree with each other and with the ignore list of config.json. Only config.json and the headers of the shards
are read. vLLM would fail on most inconsistencies too, with a KeyError, but not on a missing expert or input scale.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.compare.activations import inputs_are_quantized
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.config_agreement import quantization_config, refuse_other_config
from halfbyte.families.family import COMPANIONS
from halfbyte.families.linears import PLAIN, StoredLinear
from halfbyte.families.model import Model, describe
from halfbyte.formats.registry import FORMATS

CALIBRATE = "calibrate all experts again with halfbyte quantize SRC OUT -r RECIPE --data ..."
SWITCH = "HALFBYTE_EMULATE_ACTIVATIONS"


class Stored:
    """The linears of a checkpoint, by their names in vLLM."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            what, fix = "only a local folder can be emulated", f"download it: hf download {folder} --local-dir FOLDER"
            raise UsageError(what, where=str(folder), fix=fix)
        checkpoint = open_checkpoint(folder)
        model = describe(checkpoint)
        refuse_other_config(checkpoint, model)
        self.inputs_quantized = inputs_are_quantized(quantization_config(checkpoint.config, model))
        refuse_wrong_tensors(model, inputs_quantized=self.inputs_quantized)
        self._linears: Mapping[str, StoredLinear] = model.linears

    def rename(self, new_name: Callable[[str], str | None]) -> None:
        """Rename the linears to the module names in vLLM's model."""
        renamed = ((new_name(name), linear) for name, linear in self._linears.items())
        self._linears = {name: linear for name, linear in renamed if name is not None}

    def quantized(self, name: str) -> StoredLinear | None:
        """Return a quantized linear by name; None if it is unquantized or not a linear."""
        linear = self._linears.get(name)
        return None if linear is None or linear.format in PLAIN else linear

    def representative(self, module: str, names: Iterable[str]) -> StoredLinear | None:
        """Return one of the linears that the engine fuses into a module; refuse linears in different formats."""
        linears = [self.quantized(name) for name in names]
        formats = {linear.format if linear else "bf16" for linear in linears}
        if len(formats) > 1:
            what = f"its parts are stored in {' and '.join(sorted(formats))}, but engines fuse them"
            raise CheckpointError(what, where=module, fix="quantize all of them, or none: see `roles` in the recipe")
        return linears[0]

    def input_scale_of(self, linear: StoredLinear) -> str | None:
        """Return the suffix of a linear's calibrated input scale, or None."""
        return FORMATS[linear.format].input_scale_suffix if self.inputs_quantized else None


def refuse_wrong_tensors(model: Model, *, inputs_quantized: bool) -> None:
    """Refuse quantized linears without the input scale that their format requires, or with unexpected scales."""
    for linear in model.linears.values():
        if linear.format in PLAIN:
            continue
        wanted = FORMATS[linear.format].input_scale_suffix if inputs_quantized else None
        if wanted is not None and wanted not in linear.parts:
            what = f"it has no {wanted}: engines would use uninitialized memory"
            raise CheckpointError(what, where=linear.module, fix=CALIBRATE)
        known = {part.suffix for part in FORMATS[linear.format].tensors} | {wanted, "bias"}
        for suffix in COMPANIONS:
            if suffix in linear.parts and suffix not in known:
                what = f"it has an unused {suffix}: config.json declares {linear.format} without it"
                fix = "correct quantization_config in config.json, or write the checkpoint again"
                raise CheckpointError(what, where=linear.module, fix=fix)


def refuse_disagreement(module: str, *, declared: bool, linear: StoredLinear | None) -> None:
    """Refuse a module that is quantized in config.json but not in the shards, or the other way round."""
    if declared and linear is None:
        what = "config.json declares this module quantized, but the shards have it unquantized"
        raise CheckpointError(what, where=module, fix="add it to the ignore list of quantization_config in config.json")
    if linear is not None and not declared:
        what = f"the ignore list in config.json covers this module, but the shards have it in {linear.format}"
        fix = "remove it from the ignore list of quantization_config, or write the checkpoint again"
        raise CheckpointError(what, where=module, fix=fix)


def activations_wanted() -> bool:
    """Return whether inputs are quantized, which HALFBYTE_EMULATE_ACTIVATIONS can disable."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise UsageError(f"{SWITCH} is '{value}'", where="environment", fix="set it to on or off")
    return value == "on"
