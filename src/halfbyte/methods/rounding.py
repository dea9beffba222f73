"""Methods without data: every linear is rounded by a kernel of its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbyte.methods.method import Encode, Group, Method, encode_with_kernel

if TYPE_CHECKING:
    from halfbyte.formats.encoded import Encoded


def _rounding(name: str, title: str = "") -> Method:
    def encode_group(group: Group) -> dict[str, Encoded]:
        return {linear.module: encode_with_kernel(name, linear, group.format) for linear in group.linears}

    def encoder(_: None) -> Encode:
        return encode_group

    return Method(name=name, title=title, encoder=encoder)


MAX = _rounding("max", "each block's scale is set from its largest value")
MSE = _rounding("mse", "each block uses the FP8 scale with the smallest squared error")
EVEN = _rounding("even", "each block's scale is set from its largest value, rounded to a power of two")
COMPRESSED_TENSORS = _rounding("compressed-tensors")
KIMI = _rounding("kimi")
