"""halfbyte turns trillion-parameter MoE checkpoints into 4-bit ones.

    from halfbyte import encode, decode

    encoded = encode(weights, "nvfp4", method="mse")
    restored = decode(encoded)

Names are imported when they are first used: `import halfbyte` loads neither numpy, numba nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfbyte.errors import HalfbyteError
    from halfbyte.machine import doctor
    from halfbyte.numerics.codec import amax, decode, encode
    from halfbyte.numerics.encoded import Encoded
    from halfbyte.numerics.formats import FORMATS
    from halfbyte.pipeline import quantize
    from halfbyte.recipe.decisions import Recipe
    from halfbyte.recipe.load import load_recipe, recipe_names

    __version__: str

__all__ = [
    "FORMATS",
    "Encoded",
    "HalfbyteError",
    "Recipe",
    "amax",
    "decode",
    "doctor",
    "encode",
    "load_recipe",
    "quantize",
    "recipe_names",
]

# name -> where it lives; a name without a colon is a module.
_HOMES = {
    "FORMATS": "halfbyte.numerics.formats:FORMATS",
    "Encoded": "halfbyte.numerics.encoded:Encoded",
    "Recipe": "halfbyte.recipe.decisions:Recipe",
    "amax": "halfbyte.numerics.codec:amax",
    "HalfbyteError": "halfbyte.errors:HalfbyteError",
    "decode": "halfbyte.numerics.codec:decode",
    "doctor": "halfbyte.machine.doctor",
    "encode": "halfbyte.numerics.codec:encode",
    "load_recipe": "halfbyte.recipe.load:load_recipe",
    "quantize": "halfbyte.pipeline:quantize",
    "recipe_names": "halfbyte.recipe.load:recipe_names",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    if name not in _HOMES:
        raise AttributeError(f"module 'halfbyte' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("halfbyte")
    except PackageNotFoundError:
        return "0+not.installed"  # run from a source tree that nobody installed
