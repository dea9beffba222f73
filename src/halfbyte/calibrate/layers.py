"""Layer after layer: read the next while this one runs, keep what was measured, go on where a killed run stopped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Store
from halfbyte.calibrate.stream import Calibration, Stream
from halfbyte.forward.weights import Weights
from halfbyte.models.model import Model
from halfbyte.source.headers import TensorInfo
from halfbyte.source.hold import HoldingReader


def measured_layers(  # noqa: PLR0913 - keyword-only from the reader on
    calibration: Calibration,
    store: Store,
    model: Model,
    *,
    reader: HoldingReader,
    threads: int | None,
    say: Callable[[str], None],
    unwritten: Collection[int] = (),
) -> Iterator[tuple[int, LayerStats]]:
    """Yield every layer with its statistics; while a layer is yielded, the reader holds its tensors.

    A layer that an earlier run measured is not run again; what it holds is read anew if someone asks for it. Where the
    weights of `unwritten` layers need moments, which nobody keeps, everything up to them is.
    """
    layers = store.layers
    whole = store.whole()
    if whole is not None and not (calibration.moments and unwritten):
        yield from whole.items()
        return
    stream = Stream(calibration, Weights(model, reader), threads)
    first, hidden = store.load_hidden() or (0, stream.hidden)
    if calibration.moments and any(layer < first for layer in unwritten):
        first = 0
    else:
        stream.hidden = hidden
    for layer in range(first):
        stats = store.load(layer)
        assert stats is not None
        yield layer, stats
    if first == 0:
        stream.start()
    tensors = tensors_by_layer(model)
    with (
        ThreadPoolExecutor(1) as ahead,
        reader.nobody_waits(),
    ):  # which also waits, should an error or Ctrl-C come between
        coming: Future[None] = ahead.submit(reader.hold, tensors[first] if first < layers else [])
        for layer in range(first, layers):
            coming.result()
            coming = ahead.submit(reader.hold, tensors[layer + 1] if layer + 1 < layers else [])
            stats = stream.through(layer)
            reader.refuse_changes()
            # Moments are not kept: until the layer's weights are written, a killed run must measure it again.
            kept_later = stats.moments is not None
            if not kept_later:
                _keep(store, layer, stats, stream.hidden)
            say(f"measured layer {layer} of {layers}")
            yield layer, stats
            if kept_later:
                _keep(store, layer, stats, stream.hidden)
            reader.release(tensors[layer])
    store.finish()


def _keep(store: Store, layer: int, stats: LayerStats, hidden: torch.Tensor) -> None:
    store.save(layer, stats)
    store.save_hidden(layer + 1, hidden)


def layer_nbytes(model: Model) -> list[int]:
    """Return how much is read for each layer."""
    return [sum(info.nbytes for info in infos) for infos in tensors_by_layer(model)]


def tensors_by_layer(model: Model) -> list[list[TensorInfo]]:
    """Return what each layer holds."""
    found: list[list[TensorInfo]] = [[] for _ in range(model.layers)]
    for linear in model.linears.values():
        if linear.layer is not None:
            found[linear.layer] += linear.parts.values()
    for place, info in model.plain.values():
        if place.layer is not None:
            found[place.layer].append(info)
    return found
