"""A side of a comparison: a model with decoded tensors and experts, usually a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.compare.activations import served_activations
from halfbyte.compare.kv import cached_in_fp8
from halfbyte.engine.backends.cuda.setup import check_machine
from halfbyte.engine.backends.cuda.stored_experts import StoredExperts
from halfbyte.errors import UsageError
from halfbyte.families.model import describe
from halfbyte.families.registry import text_model
from halfbyte.families.weights import Weights
from halfbyte.forward.experts import Change, Expert
from halfbyte.forward.model import Look, Tensors, TextModel
from halfbyte.machine.devices import CPU

ACTIVATIONS = ("off", "as-served")
KV = ("off", "fp8", "fp8-scaled")


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One model. `tensors`, `experts` and the hooks must be thread-safe.

    `look` and `change` return the hooks that replace activations of a layer, see `forward`.
    """

    name: str
    model: TextModel
    tensors: Tensors  # decoded, by their names in the checkpoint
    experts: Callable[[int], Expert]  # of a layer; decoded matrices in `dtype`, on `device`
    dtype: torch.dtype = torch.float32
    look: Callable[[int], Look | None] | None = None
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
    for value, known in ((activations, ACTIVATIONS), (kv, KV)):
        if value not in known:
            raise UsageError(f"unknown value '{value}'", fix=f"choose one of {', '.join(known)}")
    if device != CPU:
        check_machine(torch.device(device))
    checkpoint = open_checkpoint(folder)
    model, text = describe(checkpoint), text_model(checkpoint.config)
    with Reader(checkpoint) as reader, ExitStack() as threads:
        weights = Weights(model, reader, dtype)
        side = Side(str(folder), text, weights, weights.experts, dtype, device=device)
        if device != CPU:
            experts = StoredExperts(model, reader, weights, dtype, torch.device(device))
            side = replace(side, experts=threads.enter_context(experts), stored_nbytes=experts.nbytes)
        if activations != "off":
            side = served_activations(side, checkpoint, model)
        if kv != "off":
            side = cached_in_fp8(side, scaled=kv == "fp8-scaled")
        yield side


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
