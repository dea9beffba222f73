"""Measure layer by layer: prefetch the next layer, save statistics, and resume interrupted runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Store
from halfbyte.calibrate.stream import Calibration, Stream
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.reader import CachingReader
from halfbyte.families.model import Model
from halfbyte.families.weights import Weights


def measured_layers(  # noqa: PLR0913 - keyword-only from the reader on
    calibration: Calibration,
    store: Store,
    model: Model,
    *,
    reader: CachingReader,
    threads: int | None,
    say: Callable[[str], None],
    unwritten: Collection[int] = (),
) -> Iterator[tuple[int, LayerStats]]:
    """Yield every layer with its statistics; while a layer is yielded, the reader holds its tensors.

    Layers measured by an earlier run are not run again; their tensors are read on demand. If `unwritten` layers need
    Hessians, which are not saved, all layers up to them are run again.
    """
    layers = store.layers
    resumed = store.resume(again=unwritten if calibration.hessians else ())
    yield from resumed.measured.items()
    if resumed.complete:
        return
    stream, first = Stream(calibration, Weights(model, reader), threads), resumed.next_layer
    if resumed.hidden is None:
        stream.start()
    else:
        stream.hidden = resumed.hidden
    tensors = tensors_by_layer(model)
    with (
        ThreadPoolExecutor(1) as prefetcher,
        reader.wake_waiters_on_error(),
    ):  # also waits for the prefetch on errors and Ctrl-C
        prefetch: Future[None] = prefetcher.submit(reader.hold, tensors[first] if first < layers else [])
        for layer in range(first, layers):
            prefetch.result()
            prefetch = prefetcher.submit(reader.hold, tensors[layer + 1] if layer + 1 < layers else [])
            stats = stream.through(layer)
            reader.refuse_changes()
            # Hessians are not saved: until the layer's weights are written, an interrupted run must measure it again.
            save_later = stats.hessians is not None
            if not save_later:
                _save(store, layer, stats, stream.hidden)
            say(f"measured layer {layer + 1} of {layers}")
            yield layer, stats
            if save_later:
                _save(store, layer, stats, stream.hidden)
            reader.release(tensors[layer])
    store.finish()


def _save(store: Store, layer: int, stats: LayerStats, hidden: torch.Tensor) -> None:
    store.save(layer, stats)
    store.save_hidden(layer + 1, hidden)


def layer_nbytes(model: Model) -> list[int]:
    """Return the number of bytes read for each layer."""
    return [sum(info.nbytes for info in infos) for infos in tensors_by_layer(model)]


def tensors_by_layer(model: Model) -> list[list[TensorInfo]]:
    """Return the tensors of each layer."""
    tensors: list[list[TensorInfo]] = [[] for _ in range(model.layers)]
    for linear in model.linears.values():
        if linear.layer is not None:
            tensors[linear.layer] += linear.parts.values()
    for place, info in model.plain.values():
        if place.layer is not None:
            tensors[place.layer].append(info)
    return tensors
