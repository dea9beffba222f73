"""GPTQ inverse-Hessian factors for the routed experts of a layer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from halfbyte.families.family import DOWN
from halfbyte.formats.reference.gptq import Moves, moves
from halfbyte.plan.rules import Job

if TYPE_CHECKING:
    from halfbyte.calibrate.hessian import Moments


class LayerFactors:
    """The factors of one layer; the one that all experts share is computed once."""

    def __init__(self, moments: Moments | None) -> None:
        self._moments, self._lock = moments, threading.Lock()
        self._shared: Moves | None = None

    def of(self, job: Job) -> Moves:
        """Return the factors of a routed expert's job. Experts without tokens get a zero Hessian: plain rounding."""
        assert self._moments is not None
        assert self._moments.given is not None  # unwritten layers are measured in the same run
        linear = job.linears[0]
        assert linear.expert is not None
        if linear.projection == DOWN:
            return moves(self._moments.acts.pop(linear.expert, np.zeros((linear.shape[1],) * 2)))
        with self._lock:
            if self._shared is None:
                self._shared = moves(self._moments.given)
            return self._shared
