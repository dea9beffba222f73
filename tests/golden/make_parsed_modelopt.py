"""The result of ModelOpt's converter for the hf_quant_config.json that halfbyte writes.

ModelOpt has no parser for exported configs. Its export derives `quantization_config` from hf_quant_config.json with
`convert_hf_quant_config_format`, so that function is used.
"""

import record
from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format


def parse(configs: dict) -> dict:
    """Return the block that ModelOpt derives from its own file, if there is one."""
    file = configs.get("hf_quant_config.json")
    return {} if file is None else {"config": convert_hf_quant_config_format(file)}


def main() -> None:
    """Write the results of the installed version."""
    args = record.arguments(__doc__.splitlines()[0])
    record.Record("nvidia-modelopt", __file__).write_parsed(args.out, args.wheel, parse)


if __name__ == "__main__":
    main()
