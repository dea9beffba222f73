"""Check that the ignore list and the shards agree on which modules are quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbyte.errors import CheckpointError

if TYPE_CHECKING:
    from halfbyte.families.linears import StoredLinear


def refuse_disagreement(module: str, *, declared: bool, linear: StoredLinear | None) -> None:
    """Refuse a module that is quantized in config.json but not in the shards, or the other way round."""
    if declared and linear is None:
        what = "config.json declares this module quantized, but the shards have it unquantized"
        raise CheckpointError(what, where=module, fix="add it to the ignore list of quantization_config in config.json")
    if linear is not None and not declared:
        what = f"the ignore list in config.json covers this module, but the shards have it in {linear.format}"
        fix = "remove it from the ignore list of quantization_config, or write the checkpoint again"
        raise CheckpointError(what, where=module, fix=fix)
