"""Hidden states of all calibration tokens, on the device or a chunk of them at a time, and a layer over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from halfbyte.calibrate.stream import DTYPE, Calibration
from halfbyte.cuda.clock import Clock
from halfbyte.cuda.decode import Experts
from halfbyte.cuda.lanes import Lane
from halfbyte.cuda.memory import CHUNK_TOKENS, EXPERT_TOKENS
from halfbyte.cuda.observe import DeviceObserver
from halfbyte.forward.ends import embed
from halfbyte.forward.experts import Expert
from halfbyte.forward.layer import DecoderLayer
from halfbyte.forward.run import Hidden, row_chunks, run_layer
from halfbyte.forward.sight import look_around
from halfbyte.forward.weights import Weights


class Offloaded:
    """Hidden states in page-locked memory of the host; chunks come and go in the order of the lane that asks."""

    def __init__(self, host: torch.Tensor, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.host = torch.empty(host.shape, dtype=host.dtype, pin_memory=pinned).copy_(host)
        self._device = device

    @property
    def shape(self) -> torch.Size:
        """Return rows, tokens of a row, and width."""
        return self.host.shape

    def new_empty(self, size: Sequence[int], /) -> torch.Tensor:
        """Return room on the device."""
        return torch.empty(size, dtype=self.host.dtype, device=self._device)

    def __getitem__(self, rows: slice, /) -> torch.Tensor:
        return self.host[rows].to(self._device, non_blocking=True)

    def __setitem__(self, rows: slice, value: torch.Tensor, /) -> None:
        self.host[rows].copy_(value, non_blocking=True)


def first_hidden(calibration: Calibration, weights: Weights) -> torch.Tensor:
    """Return what the first layer is given, on the host."""
    tokens = torch.from_numpy(calibration.rows.tokens).long()
    return embed(tokens, weights(f"{calibration.text.prefix}model.embed_tokens.weight"), DTYPE)


class DeviceStream:
    """A device's rows between two layers."""

    def __init__(
        self, calibration: Calibration, device: torch.device, lane: Lane, clock: Clock, *, offloads: bool = False
    ) -> None:
        self._of, self._device, self._lane, self._clock = calibration, device, lane, clock
        rows, length = calibration.rows.tokens.shape
        self._chunks = row_chunks(rows, max(1, CHUNK_TOKENS // length))
        self._offloads = offloads
        self._hidden: Hidden = torch.empty(0)

    def begin(self, hidden: torch.Tensor) -> None:
        """Stand before the layer that these hidden states are given to."""
        with self._lane:
            self._hidden = Offloaded(hidden, self._device) if self._offloads else hidden.to(self._device)

    def kept(self) -> torch.Tensor:
        """Return a copy of the hidden states on the host; waits for the device."""
        with self._lane:
            if isinstance(self._hidden, Offloaded):
                self._lane.mark().wait()
                return self._hidden.host.clone()
            return self._hidden[:].to("cpu", copy=True)  # also where it is there already: the next layer changes it

    def through(self, layer: DecoderLayer, experts: Experts | Expert | None) -> DeviceObserver:
        """Run a layer; the device may still be at it when this returns."""
        text, rows = self._of.text, self._of.rows
        count = text.config.n_routed_experts if layer.is_moe else 0
        observer = DeviceObserver(layer.index, rows, count, self._device)
        with self._lane:
            begin = self._lane.mark()
            run_layer(
                layer,
                self._hidden,
                lambda chunk: look_around(text, rows, chunk, DTYPE, str(self._device)),
                self._chunks,
                experts,
                looks=observer.look,
                routes=observer.routes,
                observe=observer.expert,
                add=observer.add,
                most=EXPERT_TOKENS,
            )
            end = self._lane.mark()
        began = experts.began if isinstance(experts, Experts) else None
        middle = began or end
        self._clock.between("attention", begin, middle)
        self._clock.between("experts", middle, end)
        return observer
