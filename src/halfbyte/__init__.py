"""Convert trillion-parameter MoE checkpoints to 4 bits.

    from halfbyte import api, decode, encode

    result = api.quantize("SRC", "OUT", "kimi-k2.6-mxfp4-wafer")  # and inspect, plan, prune, audit, compare
    encoded = encode(weights, "nvfp4", method="mse")
    restored = decode(encoded)

`halfbyte.inspect`, `plan`, `prune`, `audit` and `compare` are packages. The functions with these names are in
`halfbyte.api`. Names are imported on first use, so `import halfbyte` does not load NumPy, Numba or PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfbyte import api, doctor
    from halfbyte.api import quantize
    from halfbyte.errors import HalfbyteError
    from halfbyte.formats.codec import amax, decode, encode
    from halfbyte.formats.encoded import Encoded
    from halfbyte.formats.registry import FORMATS
    from halfbyte.recipe.decisions import Recipe
    from halfbyte.recipe.load import load_recipe, recipe_names

    __version__: str

__all__ = [
    "FORMATS",
    "Encoded",
    "HalfbyteError",
    "Recipe",
    "amax",
    "api",
    "decode",
    "doctor",
    "encode",
    "load_recipe",
    "quantize",
    "recipe_names",
]

# Name -> module:attribute, or a module.
_HOMES = {
    "FORMATS": "halfbyte.formats.registry:FORMATS",
    "Encoded": "halfbyte.formats.encoded:Encoded",
    "Recipe": "halfbyte.recipe.decisions:Recipe",
    "amax": "halfbyte.formats.codec:amax",
    "api": "halfbyte.api",
    "HalfbyteError": "halfbyte.errors:HalfbyteError",
    "decode": "halfbyte.formats.codec:decode",
    "doctor": "halfbyte.doctor",
    "encode": "halfbyte.formats.codec:encode",
    "load_recipe": "halfbyte.recipe.load:load_recipe",
    "quantize": "halfbyte.api:quantize",
    "recipe_names": "halfbyte.recipe.load:recipe_names",
}
# Packages that share their name with a function of halfbyte.api. As attributes they would depend on import order.
_PACKAGES = ("audit", "compare", "inspect", "plan", "prune")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    if name in _PACKAGES:
        raise AttributeError(
            f"'halfbyte.{name}' is a package; call halfbyte.api.{name}(...), or import halfbyte.{name}"
        )
    if name not in _HOMES:
        raise AttributeError(f"module 'halfbyte' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value  # cached for the next access
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("halfbyte")
    except PackageNotFoundError:
        return "0+not.installed"  # running from a source tree
