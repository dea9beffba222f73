"""The config.json block of compressed-tensors, which several formats share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHOD = "compressed-tensors"


def config_block(
    name: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, ignore: list[str]
) -> dict[str, Any]:
    """Return the block for a compressed-tensors `format`."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": METHOD,
        "format": name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": None,
    }


def scheme(bits: int, kind: str, strategy: str, group: int | None, dynamic: bool | str) -> dict[str, Any]:
    """Return the scheme of weights or inputs."""
    return {
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "group_size": group,
        "symmetric": True,
        "dynamic": dynamic,
    }
