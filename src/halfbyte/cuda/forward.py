"""Hidden states of all calibration tokens on the device, and a layer over them."""

from __future__ import annotations

import torch

from halfbyte.calibrate.stream import DTYPE, Calibration
from halfbyte.cuda.clock import Clock
from halfbyte.cuda.decode import Experts
from halfbyte.cuda.lanes import Lane
from halfbyte.cuda.observe import DeviceObserver
from halfbyte.forward.ends import embed
from halfbyte.forward.experts import Expert
from halfbyte.forward.layer import DecoderLayer
from halfbyte.forward.run import row_chunks, run_layer
from halfbyte.forward.sight import look_around
from halfbyte.forward.weights import Weights

CHUNK_TOKENS = 1 << 14  # through attention at a time


class DeviceStream:
    """All rows between two layers."""

    def __init__(self, calibration: Calibration, device: torch.device, lane: Lane, clock: Clock) -> None:
        self._of, self._device, self._lane, self._clock = calibration, device, lane, clock
        rows, length = calibration.rows.tokens.shape
        self._chunks = row_chunks(rows, max(1, CHUNK_TOKENS // length))
        self.hidden = torch.empty(0)

    def start(self, weights: Weights) -> None:
        """Stand before the first layer."""
        tokens = torch.from_numpy(self._of.rows.tokens).long()
        self.go_on(embed(tokens, weights(f"{self._of.text.prefix}model.embed_tokens.weight"), DTYPE))

    def go_on(self, hidden: torch.Tensor) -> None:
        """Stand before a later layer, with the hidden states that were kept."""
        with self._lane:
            self.hidden = hidden.to(self._device)

    def through(self, layer: DecoderLayer, experts: Experts | Expert | None) -> DeviceObserver:
        """Run a layer; the device may still be at it when this returns."""
        text, rows = self._of.text, self._of.rows
        count = text.config.n_routed_experts if layer.is_moe else 0
        observer = DeviceObserver(layer.index, rows, count, self._device)
        with self._lane:
            begin = self._lane.mark()
            run_layer(
                layer,
                self.hidden,
                lambda chunk: look_around(text, rows, chunk, DTYPE, str(self._device)),
                self._chunks,
                experts,
                looks=observer.look,
                routes=observer.routes,
                observe=observer.expert,
                add=observer.add,
            )
            end = self._lane.mark()
        began = experts.began if isinstance(experts, Experts) else None
        middle = began or end
        self._clock.between("attention", begin, middle)
        self._clock.between("experts", middle, end)
        return observer
