"""What a folder stores, by the names that vLLM gives to modules; what does not fit together is refused before loading.

Only config.json and the headers of the shards are read. vLLM would stop at most of this too, with a KeyError; at an
expert that is not there, and at an input scale that is not there, it would not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from halfbyte.compare.activations import INPUT_SCALES, inputs_are_quantized
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.models.architecture import COMPANIONS
from halfbyte.models.declared import quantization_config, refuse_other_config
from halfbyte.models.linears import PLAIN, StoredLinear
from halfbyte.models.model import Model, describe
from halfbyte.numerics.formats import FORMATS
from halfbyte.source.checkpoint import open_checkpoint

CALIBRATE = "calibrate it again, with all experts: halfbyte quantize SRC OUT -r RECIPE --data ..."


class Stored:
    """The linears of a checkpoint, by their names in vLLM."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            what, fix = "only a folder can be emulated", f"download it: hf download {folder} --local-dir FOLDER"
            raise UsageError(what, where=str(folder), fix=fix)
        checkpoint = open_checkpoint(folder)
        model = describe(checkpoint)
        refuse_other_config(checkpoint, model)
        self.inputs_quantized = inputs_are_quantized(quantization_config(checkpoint.config, model))
        refuse_wrong_tensors(model, inputs_quantized=self.inputs_quantized)
        self._linears: Mapping[str, StoredLinear] = model.linears

    def rename(self, new_name: Callable[[str], str | None]) -> None:
        """Give modules the names that the engine's model has for them."""
        renamed = ((new_name(name), linear) for name, linear in self._linears.items())
        self._linears = {name: linear for name, linear in renamed if name is not None}

    def quantized(self, name: str) -> StoredLinear | None:
        """Return a linear that is stored quantized; None for one that is not, and for what is no linear."""
        linear = self._linears.get(name)
        return None if linear is None or linear.format in PLAIN else linear

    def alike(self, module: str, names: Iterable[str]) -> StoredLinear | None:
        """Return one of the linears that the engine fuses into a module; they must all be stored alike."""
        found = [self.quantized(name) for name in names]
        formats = {linear.format if linear else "bf16" for linear in found}
        if len(formats) > 1:
            what = f"its parts are stored in {' and '.join(sorted(formats))}, and engines load them as one"
            raise CheckpointError(what, where=module, fix="quantize all of them, or none: see `roles` in the recipe")
        return found[0]

    def input_scale_of(self, linear: StoredLinear) -> str | None:
        """Return the suffix of the calibrated input scale that a linear has."""
        return INPUT_SCALES.get(linear.format) if self.inputs_quantized else None


def refuse_wrong_tensors(model: Model, *, inputs_quantized: bool) -> None:
    """Each quantized linear has its calibrated input scale, where its format wants one, and nothing besides."""
    for linear in model.linears.values():
        if linear.format in PLAIN:
            continue
        wanted = INPUT_SCALES.get(linear.format) if inputs_quantized else None
        if wanted is not None and wanted not in linear.parts:
            what = f"it has no {wanted}: engines would take what lies in memory for it"
            raise CheckpointError(what, where=linear.module, fix=CALIBRATE)
        known = {part.suffix for part in FORMATS[linear.format].tensors} | {wanted, "bias"}
        for suffix in COMPANIONS:
            if suffix in linear.parts and suffix not in known:
                what = f"it has an {suffix}, which nobody reads: config.json declares {linear.format} without it"
                fix = "repair quantization_config in config.json, or write the checkpoint again"
                raise CheckpointError(what, where=linear.module, fix=fix)
