"""All quantization methods. To add one, write its module and list it here."""

from __future__ import annotations

from collections.abc import Mapping

from halfbyte.errors import RecipeError
from halfbyte.formats.registry import FORMATS
from halfbyte.methods.gptq import GPTQ
from halfbyte.methods.method import Method
from halfbyte.methods.rounding import COMPRESSED_TENSORS, EVEN, KIMI, MAX, MSE

METHODS: Mapping[str, Method] = {method.name: method for method in (MAX, MSE, GPTQ, EVEN, COMPRESSED_TENSORS, KIMI)}


def methods_of(format: str) -> list[str]:
    """Return the names of the methods that write a format, its default first."""
    others = [method.name for method in METHODS.values() if format in method.formats]
    return [*FORMATS[format].encodes, *others]


def method_of(role: str, scales: str) -> Method:
    """Return the method of a role if the recipe's `quantize.scales` is `scales`."""
    method = method_named(scales)
    if method.roles is None or role in method.roles:
        return method
    assert method.otherwise is not None
    return METHODS[method.otherwise]


def method_named(scales: str) -> Method:
    """Return a method; raise RecipeError for an unknown one, as in plans of other versions."""
    if scales not in METHODS:
        fix = f"use one of {', '.join(METHODS)}; recreate plans and outputs of other versions of halfbyte"
        raise RecipeError(f"unknown method '{scales}'", where="quantize.scales", fix=fix)
    return METHODS[scales]
