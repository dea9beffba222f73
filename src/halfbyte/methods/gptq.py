"""GPTQ: compensate rounding errors with the Hessian of the inputs. The arithmetic is in formats/reference/gptq.py."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfbyte.methods.method import Encode, Group, Linear, Method, encode_with_kernel

if TYPE_CHECKING:
    from halfbyte.formats.encoded import Encoded
    from halfbyte.formats.reference.gptq import F64, Factors

_SAMPLE_WIDTH = 512  # each column updates all later ones: twice the width, twice the work per weight


@dataclass(slots=True, eq=False)
class Hessians:
    """Hessians (sums of x x^T) of a layer's expert inputs in FP64. `calibrate` collects them."""

    shared: F64 | None = None  # [D, D]: inputs that all experts share
    by_expert: dict[int, F64] = field(default_factory=dict[int, "F64"])  # [F, F]: inputs of an expert's own activations


class LayerFactors:
    """The inverse-Hessian factors of one layer; the one that all experts share is computed once."""

    def __init__(self, hessians: Hessians) -> None:
        self._hessians, self._lock = hessians, threading.Lock()
        self._shared: Factors | None = None

    def of(self, linear: Linear) -> Factors:
        """Return the factors of an expert's linear. Experts without tokens get a zero Hessian: plain rounding."""
        import numpy as np  # noqa: PLC0415

        from halfbyte.formats.reference.gptq import factor  # noqa: PLC0415

        assert self._hessians.shared is not None  # unwritten layers are measured in the same run
        if linear.has_expert_inputs:
            assert linear.expert is not None
            width = linear.weights.shape[1]
            return factor(self._hessians.by_expert.pop(linear.expert, np.zeros((width, width))))
        with self._lock:
            if self._shared is None:
                self._shared = factor(self._hessians.shared)
            return self._shared


def _encoder(hessians: Hessians) -> Encode:
    factors = LayerFactors(hessians)

    def encode_group(group: Group) -> dict[str, Encoded]:
        return {
            linear.module: encode_with_kernel("gptq", linear, group.format, factors=factors.of(linear))
            for linear in group.linears
        }

    return encode_group


def _sample(width: int) -> Hessians:
    import numpy as np  # noqa: PLC0415

    inputs = np.random.default_rng(0).standard_normal((2 * width, width))
    shared: F64 = np.dot(np.transpose(inputs), inputs)
    return Hessians(shared=shared)


GPTQ = Method(
    name="gptq",
    title="GPTQ error compensation with calibration data",
    encoder=_encoder,
    statistics="hessian",
    roles=("routed_experts",),
    otherwise="mse",
    sample=_sample,
    sample_width=_SAMPLE_WIDTH,
)
