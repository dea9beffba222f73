"""The result of compressed-tensors' parser for the configs that halfbyte writes."""

import record
import torch
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationConfig


def parse(configs: dict) -> dict:
    """Return compressed-tensors' result for its own blocks, and the format that it infers."""
    block = configs["quantization_config"]
    if block["quant_method"] != "compressed-tensors":
        return {}
    read = QuantizationConfig.model_validate(block)
    (scheme,) = read.config_groups.values()
    return {
        "config": read.model_dump(mode="json"),
        "inferred_format": infer_module_format(torch.nn.Linear, scheme).value,
    }


def main() -> None:
    """Write the results of the installed version."""
    args = record.arguments(__doc__.splitlines()[0])
    record.Record("compressed-tensors", __file__).write_parsed(args.out, args.wheel, parse)


if __name__ == "__main__":
    main()
