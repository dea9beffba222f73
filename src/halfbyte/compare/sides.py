"""A side of a comparison: anything that gives decoded tensors and experts, a checkpoint for example."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from halfbyte.compare.activations import served_activations
from halfbyte.compare.kv import cached_in_fp8
from halfbyte.errors import UsageError
from halfbyte.forward.config import TextModel, text_model
from halfbyte.forward.experts import Change, Expert
from halfbyte.forward.layer import Look, Tensors
from halfbyte.forward.weights import Weights
from halfbyte.models.model import describe
from halfbyte.source.checkpoint import open_checkpoint
from halfbyte.source.read import Reader
from halfbyte.terminal.device_options import CPU

ACTIVATIONS = ("off", "as-served")
KV = ("off", "fp8", "fp8-scaled")
# What must be equal for hidden states and predictions to mean the same. The number of experts may differ: a pruned
# model is compared like any other, only its router's choices are not.
_ALIKE = (
    "vocab_size", "num_hidden_layers", "hidden_size", "first_k_dense_replace", "num_experts_per_tok", "n_group",
    "topk_group",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One model. `tensors`, `experts` and what the changes return may be called by any thread.

    `look` and `change` give, for a layer, what is put in the place of activations: see `forward`.
    """

    name: str
    model: TextModel
    tensors: Tensors  # decoded, by their names in the checkpoint
    experts: Callable[[int], Expert]  # of a layer; decoded matrices in `dtype`, on `device`
    dtype: torch.dtype = torch.float32
    look: Callable[[int], Look | None] | None = None
    change: Callable[[int], Change | None] | None = None
    emulated: Mapping[str, str] = field(default_factory=dict[str, str])  # what these two do, in words
    device: str = CPU  # where layers run; `tensors` are on the host all the same
    stored_nbytes: int = 0  # of the device, that the experts of a layer take


@contextmanager
def open_side(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    activations: str = "off",
    kv: str = "off",
    device: str = CPU,
) -> Generator[Side]:
    """Open a checkpoint of any stored format; decoded tensors are read when they are asked for.

    `activations` as-served quantizes what engines quantize on the way into linears; `kv` puts the KV cache in FP8,
    cast or with the checkpoint's own scales. On a `device` experts are decoded there.
    """
    for value, known in ((activations, ACTIVATIONS), (kv, KV)):
        if value not in known:
            raise UsageError(f"unknown choice '{value}'", fix=f"choose one of {', '.join(known)}")
    if device != CPU:
        from halfbyte.cuda.start import check_machine  # noqa: PLC0415 - only those who have one pay for it

        check_machine(torch.device(device))
    checkpoint = open_checkpoint(folder)
    model, text = describe(checkpoint), text_model(checkpoint.config)
    with Reader(checkpoint) as reader, ExitStack() as threads:
        weights = Weights(model, reader, dtype)
        side = Side(str(folder), text, weights, lambda layer: weights.experts(text, layer), dtype, device=device)
        if device != CPU:
            from halfbyte.cuda.stored_experts import StoredExperts  # noqa: PLC0415

            there = StoredExperts(model, text, reader, weights, dtype, torch.device(device))
            side = replace(side, experts=threads.enter_context(there), stored_nbytes=there.nbytes)
        if activations != "off":
            side = served_activations(side, checkpoint, model)
        if kv != "off":
            side = cached_in_fp8(side, scaled=kv == "fp8-scaled")
        yield side


def refuse_unlike(first: Side, second: Side) -> None:
    """Two models must have the same words, layers, widths and router to be compared, and run in the same place."""
    if first.device != second.device:
        what = f"they run on different devices: {first.device} and {second.device}"
        raise UsageError(what, where=f"{first.name} and {second.name}", fix="open both with the same device")
    for key in _ALIKE:
        a, b = (getattr(side.model.config, key) for side in (first, second))
        if a != b:
            what = f"the checkpoints differ in {key}: {a} and {b}"
            raise UsageError(what, where=f"{first.name} and {second.name}", fix="compare a checkpoint with its source")
