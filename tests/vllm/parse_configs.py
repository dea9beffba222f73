"""Parse quantization configs with vLLM's own classes: `python parse_configs.py FILE [PRODUCER]...` prints JSON.

FILE has the configs by name and file, as in tests/golden/config_blocks.json.
"""

import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

KEYS = (
    "quant_method", "exclude_modules", "kv_cache_quant_algo", "group_size",  # ModelOpt's
    "quant_format", "ignore",  # compressed-tensors'
)  # fmt: skip


def parsed(config: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's result for a block: the chosen method and its settings."""
    import vllm.config  # noqa: F401 - the import below is circular without it
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, get_quantization_config
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

    convertor = ModelArchConfigConvertorBase.__new__(ModelArchConfigConvertorBase)
    try:
        config = convertor._normalize_quantization_config(SimpleNamespace(quantization_config=copy.deepcopy(config)))
        methods = {name: get_quantization_config(name) for name in QUANTIZATION_METHODS}
        taken = [name for name, method in methods.items() if method.override_quantization_method(dict(config), None)]
        name = taken[0] if taken else config["quant_method"]
        read = methods[name].from_config(config)
    except (ValueError, KeyError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    quark = {"exclude": read.quant_config["exclude"]} if name == "quark" else {}
    return {"method": name, **{key: getattr(read, key) for key in KEYS if hasattr(read, key)}, **quark}


def main() -> None:
    """Parse all configs, and one hf_quant_config.json with each of the given producer names."""
    written = json.loads(Path(sys.argv[1]).read_text())
    found: dict[str, Any] = {
        name: {file: parsed(config) for file, config in configs.items()} for name, configs in written.items()
    }
    file = next(configs["hf_quant_config.json"] for configs in written.values() if "hf_quant_config.json" in configs)
    producers = {name: parsed({**file, "producer": {**file["producer"], "name": name}}) for name in sys.argv[2:]}
    print(json.dumps({"configs": found, "producers": producers}))


if __name__ == "__main__":
    main()
