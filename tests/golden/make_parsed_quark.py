"""The result of AMD Quark's parser, and of transformers through it, for the configs that halfbyte writes."""

import make_quark  # noqa: F401 - before anything of Quark: it stands in for what torch has dropped
import record
from quark.torch.quantization.config.config import QConfig
from transformers.utils.quantization_config import QuarkConfig


def parse(configs: dict) -> dict:
    """Return Quark's result for its own blocks."""
    block = configs["quantization_config"]
    if block["quant_method"] != "quark":
        return {}
    read = QConfig.from_dict(block).to_dict()
    through = QuarkConfig(**block)
    if through.quant_config.to_dict() != read:
        raise SystemExit("transformers reads the block in another way than Quark")
    return {"config": read, "pack_method": through.json_export_config.pack_method}


def main() -> None:
    """Write the results of the installed version."""
    args = record.arguments(__doc__.splitlines()[0])
    record.Record("amd-quark", __file__, ["transformers"]).write_parsed(args.out, args.wheel, parse)


if __name__ == "__main__":
    main()
