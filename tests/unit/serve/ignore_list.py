"""A small checkpoint with the complete list of unquantized modules that engines need."""

import json

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.families.linears import PLAIN
from halfbyte.families.model import describe
from halfbyte.plan.vllm_matching import module_roles

_KEYS = {"quark": "exclude"}


def with_ignore_list(folder):
    """List every unquantized module in the config, and return the folder."""
    checkpoint = open_checkpoint(folder)
    block = checkpoint.config.get("quantization_config")
    if block is not None:
        model = describe(checkpoint, uneven=True)
        quantized = {linear.module for linear in model.linears.values() if linear.format not in PLAIN}
        block[_KEYS.get(block["quant_method"], "ignore")] = sorted(set(module_roles(model)) - quantized)
        (folder / "config.json").write_text(json.dumps(checkpoint.config))
        beside = folder / "hf_quant_config.json"
        if beside.exists():
            found = json.loads(beside.read_text())
            found["quantization"]["exclude_modules"] = block["ignore"]
            beside.write_text(json.dumps(found))
    return folder
