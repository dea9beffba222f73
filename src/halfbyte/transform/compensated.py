"""Which moves each linear of a layer is compensated with."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from halfbyte.numerics.reference.compensate import Moves, moves
from halfbyte.plan.rules import Job
from halfbyte.transform.scales import DOWN

if TYPE_CHECKING:
    from halfbyte.calibrate.moments import Moments


class LayerMoves:
    """The moves of one layer; those that many experts share are made once."""

    def __init__(self, moments: Moments | None) -> None:
        self._moments, self._lock = moments, threading.Lock()
        self._shared: Moves | None = None

    def of(self, job: Job) -> Moves:
        """Return the moves of a routed expert's job. An expert that saw no token is only rounded."""
        assert self._moments is not None
        assert self._moments.given is not None  # layers that are still to be written are measured in the same run
        linear = job.linears[0]
        assert linear.expert is not None
        if linear.module.endswith(DOWN):
            return moves(self._moments.acts.pop(linear.expert, np.zeros((linear.shape[1],) * 2)))
        with self._lock:
            if self._shared is None:
                self._shared = moves(self._moments.given)
            return self._shared
