"""A side of a comparison: a model with decoded tensors and experts, usually a checkpoint; emulates an FP8 KV cache."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.compare.activations import served_activations
from halfbyte.engine.backends.cuda.backend import check_machine
from halfbyte.engine.backends.cuda.experts import StoredExperts
from halfbyte.engine.planned_output import PlannedOutput, PlannedReader
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.model import Model, describe
from halfbyte.families.registry import text_model
from halfbyte.families.weights import Weights
from halfbyte.forward.experts import Change, Expert
from halfbyte.forward.model import Hook, Tensors, TextModel, fetch
from halfbyte.machine.device_option import CPU

ACTIVATIONS = ("off", "as-served")
KV = ("off", "fp8", "fp8-scaled")


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One model. `tensors`, `experts` and the hooks must be thread-safe.

    `hook` and `change` return the hooks that replace activations of a layer, see `forward`.
    """

    name: str
    model: TextModel
    tensors: Tensors  # decoded, by their names in the checkpoint
    experts: Callable[[int], Expert]  # of a layer; decoded matrices in `dtype`, on `device`
    dtype: torch.dtype = torch.float32
    hook: Callable[[int], Hook | None] | None = None
    change: Callable[[int], Change | None] | None = None
    emulated: Mapping[str, str] = field(default_factory=dict[str, str])  # description of these hooks
    device: str = CPU  # where layers run; `tensors` are always on the host
    stored_nbytes: int = 0  # device memory that the experts of a layer take


@contextmanager
def open_side(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    activations: str = "off",
    kv: str = "off",
    device: str = CPU,
) -> Generator[Side]:
    """Open a checkpoint of any stored format; tensors are read and decoded on demand.

    `activations` as-served quantizes the inputs of linears as in engines. `kv` emulates an FP8 KV cache, cast or with
    the checkpoint's scales. On a GPU `device`, experts are decoded there.
    """
    _check(activations, kv, device)
    checkpoint = open_checkpoint(folder)
    model = describe(checkpoint)
    with Reader(checkpoint) as reader, ExitStack() as threads:
        weights = Weights(model, reader, dtype)
        side = Side(str(folder), text_model(checkpoint.config), weights, weights.experts, dtype, device=device)
        if device != CPU:
            experts = StoredExperts(model.linears.values(), reader, weights, dtype, torch.device(device))
            side = replace(side, experts=threads.enter_context(experts), stored_nbytes=experts.nbytes)
        yield _emulating(side, checkpoint, model, activations, kv)


@contextmanager
def open_planned_side(
    output: PlannedOutput,
    *,
    dtype: torch.dtype = torch.float32,
    activations: str = "off",
    kv: str = "off",
    device: str = CPU,
) -> Generator[Side]:
    """Open the output of a recipe that is not written: its tensors are encoded from the source, then decoded.

    The options are those of `open_side`. On a GPU `device`, experts are encoded there, to the same bytes.
    """
    _check(activations, kv, device)
    checkpoint, model = output.checkpoint, describe(output.checkpoint)
    name = f"{checkpoint.root} with recipe {output.plan.recipe.name}"
    with Reader(output.plan.checkpoint) as source, PlannedReader(output, source) as reader, ExitStack() as threads:
        weights = Weights(model, reader, dtype)
        side = Side(name, text_model(checkpoint.config), weights, weights.experts, dtype, device=device)
        if device != CPU:
            from halfbyte.engine.backends.cuda.planned_experts import PlannedExperts  # noqa: PLC0415 - needs Triton

            experts = PlannedExperts(output.plan, model, source, weights, dtype, torch.device(device))
            side = replace(side, experts=threads.enter_context(experts), stored_nbytes=experts.nbytes)
        yield _emulating(side, checkpoint, model, activations, kv)


def _check(activations: str, kv: str, device: str) -> None:
    for value, known in ((activations, ACTIVATIONS), (kv, KV)):
        if value not in known:
            raise UsageError(f"unknown value '{value}'", fix=f"choose one of {', '.join(known)}")
    if device != CPU:
        check_machine(torch.device(device))


def _emulating(side: Side, checkpoint: Checkpoint, model: Model, activations: str, kv: str) -> Side:
    if activations != "off":
        side = served_activations(side, checkpoint, model)
    return side if kv == "off" else cached_in_fp8(side, scaled=kv == "fp8-scaled")


def refuse_unlike(first: Side, second: Side) -> None:
    """Raise UsageError unless both models have the same vocabulary, layers, widths, router settings and device."""
    if first.device != second.device:
        what = f"the models are on different devices: {first.device} and {second.device}"
        raise UsageError(what, where=f"{first.name} and {second.name}", fix="open both with the same device")
    theirs = second.model.comparable()
    for key, a in first.model.comparable().items():
        if a != (b := theirs.get(key)):
            what = f"the checkpoints differ in {key}: {a} and {b}"
            raise UsageError(what, where=f"{first.name} and {second.name}", fix="compare a checkpoint with its source")


# Emulate an FP8 KV cache on the tensors that MLA caches: the normalized latent and the RoPE key.
#
# Cast converts both to E4M3 without a scale. Scaled divides both by the checkpoint's k_scale first, as in vLLM 0.17
# to 0.24 (0.25 to 0.32 drop the scale). That scale was calibrated on expanded keys, a different tensor.

_E4M3_MAX = 448.0
_CACHED = ("latent", "k_rope")  # in the attention module
_K_SCALE = "k_proj.k_scale"


def fp8(x: torch.Tensor, scale: float | torch.Tensor = 1.0) -> torch.Tensor:
    """Round x to E4M3 under a scale and back, saturating large values."""
    code = (x.float() / scale).clamp_(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return (code.float() * scale).to(x.dtype)


def cached_in_fp8(side: Side, *, scaled: bool) -> Side:
    """Return the side with its KV cache in FP8."""
    if scaled:
        _k_scale(side, 0)  # fails early if the checkpoint has no scales
    description = "fp8, latent and rope key by the checkpoint's k_scale" if scaled else "fp8, cast without scales"
    inner = side.hook
    cached_names = [f"{side.model.attention_module}.{name}" for name in _CACHED]

    def hook(layer: int) -> Hook:
        scale = _k_scale(side, layer).to(side.device) if scaled else 1.0  # on the device, for exact division
        others = inner(layer) if inner else None

        def cached(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
            if name in cached_names:
                return fp8(tensor, scale)
            return others(name, tensor) if others else None

        return cached

    return replace(side, hook=hook, emulated={**side.emulated, "kv": description})


def _k_scale(side: Side, layer: int) -> torch.Tensor:
    try:
        name = f"{side.model.layer(layer)}{side.model.attention_module}.{_K_SCALE}"
        scale = fetch(side.tensors, name).float().reshape(())
    except CheckpointError:
        what = "the checkpoint has no k_scale"
        raise UsageError(what, where=side.name, fix="use --kv fp8, as engines do for this checkpoint") from None
    if not (torch.isfinite(scale) and scale > 0):
        raise CheckpointError(f"k_scale of layer {layer} is {float(scale)}", where=side.name, fix="calibrate it again")
    return scale
