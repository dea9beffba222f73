"""Hidden states of the calibration tokens, on the device or offloaded, and the forward pass of a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from halfbyte.calibrate.stream import DTYPE, Calibration
from halfbyte.engine.backends.cuda.experts import Experts
from halfbyte.engine.backends.cuda.observe import DeviceObserver
from halfbyte.engine.backends.cuda.placement import CHUNK_TOKENS, EXPERT_TOKENS
from halfbyte.engine.backends.cuda.streams import Clock, Lane
from halfbyte.families.weights import Weights
from halfbyte.forward.embedding_and_head import embed
from halfbyte.forward.experts import Expert
from halfbyte.forward.model import DecoderLayer
from halfbyte.forward.positions import attention_inputs
from halfbyte.forward.run import Hidden, row_chunks, run_layer


class _Offloaded:
    """Hidden states in page-locked host memory; chunks are copied in the current lane's order."""

    def __init__(self, host: torch.Tensor, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.host = torch.empty(host.shape, dtype=host.dtype, pin_memory=pinned).copy_(host)
        self._device = device

    @property
    def shape(self) -> torch.Size:
        """Return the shape: rows, tokens per row, width."""
        return self.host.shape

    def new_empty(self, size: Sequence[int], /) -> torch.Tensor:
        """Return uninitialized memory on the device."""
        return torch.empty(size, dtype=self.host.dtype, device=self._device)

    def __getitem__(self, rows: slice, /) -> torch.Tensor:
        return self.host[rows].to(self._device, non_blocking=True)

    def __setitem__(self, rows: slice, value: torch.Tensor, /) -> None:
        self.host[rows].copy_(value, non_blocking=True)


def first_hidden(calibration: Calibration, weights: Weights) -> torch.Tensor:
    """Return the input of the first layer, on the host."""
    tokens = torch.from_numpy(calibration.rows.tokens).long()
    return embed(tokens, weights(calibration.text.embedding), DTYPE)


class DeviceStream:
    """The hidden states of a device's rows between two layers."""

    def __init__(
        self, calibration: Calibration, device: torch.device, lane: Lane, clock: Clock, *, offloads: bool = False
    ) -> None:
        self._of, self._device, self._lane, self._clock = calibration, device, lane, clock
        rows, length = calibration.rows.tokens.shape
        self._chunks = row_chunks(rows, max(1, CHUNK_TOKENS // length))
        self._offloads = offloads
        self._hidden: Hidden = torch.empty(0)

    def begin(self, hidden: torch.Tensor) -> None:
        """Set the input of the next layer."""
        with self._lane:
            self._hidden = _Offloaded(hidden, self._device) if self._offloads else hidden.to(self._device)

    def snapshot(self) -> torch.Tensor:
        """Return a copy of the hidden states on the host; synchronizes."""
        with self._lane:
            if isinstance(self._hidden, _Offloaded):
                self._lane.mark().wait()
                return self._hidden.host.clone()
            return self._hidden[:].to("cpu", copy=True)  # copy=True: the next layer overwrites it

    def through(
        self, layer: DecoderLayer, experts: Experts | Expert | None, *, hessians: tuple[int, int] | None = None
    ) -> DeviceObserver:
        """Start the forward pass of a layer; the device may still be running when this returns.

        `hessians` are the widths of the experts' inputs, if their Hessians are needed.
        """
        text, rows = self._of.text, self._of.rows
        count = text.experts if layer.is_moe else 0
        observer = DeviceObserver(layer.index, rows, count, self._device, hessians=hessians)
        with self._lane:
            begin = self._lane.mark()
            inputs = run_layer(
                layer,
                self._hidden,
                lambda chunk: attention_inputs(text, rows, chunk, DTYPE, str(self._device)),
                self._chunks,
                experts,
                hook_of=observer.hook,
                routes=observer.routes,
                observe=observer.expert,
                add=observer.add,
                most=EXPERT_TOKENS,
            )
            if inputs is not None:
                observer.all_inputs(inputs)
            end = self._lane.mark()
        attention_end = experts.attention_end if isinstance(experts, Experts) else None
        middle = attention_end or end
        self._clock.between("attention", begin, middle)
        self._clock.between("experts", middle, end)
        return observer
