"""A small checkpoint whose list of unquantized modules is the whole one, as engines want it."""

import json

from halfbyte.audit.matchers import module_roles
from halfbyte.models.linears import PLAIN
from halfbyte.models.model import describe
from halfbyte.source.checkpoint import open_checkpoint

_KEYS = {"quark": "exclude"}


def with_ignore_list(folder):
    """Name every module that is stored unquantized, and return the folder."""
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
