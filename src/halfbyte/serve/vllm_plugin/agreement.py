"""The ignore list against the shards: a module is quantized in both, or in neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbyte.errors import CheckpointError

if TYPE_CHECKING:
    from halfbyte.models.linears import StoredLinear


def refuse_disagreement(module: str, *, declared: bool, linear: StoredLinear | None) -> None:
    """Refuse a module that vLLM takes for quantized and that is not stored so, and one the other way round."""
    if declared and linear is None:
        what = "vLLM reads config.json as if this were quantized, but the shards have it unquantized"
        raise CheckpointError(what, where=module, fix="add it to the ignore list of quantization_config in config.json")
    if linear is not None and not declared:
        what = f"the ignore list in config.json covers this, but the shards have it in {linear.format}"
        raise CheckpointError(what, where=module, fix="take it off the ignore list of quantization_config, or write "
                              "the checkpoint again")  # fmt: skip
