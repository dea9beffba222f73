"""A golden checkpoint of AMD Quark: MXFP4 of the routed experts, file to file from INT4.

The globs exclude the modules that the card of wafer-ai/Kimi-K2.6-MXFP4 lists, and the routers. They come from Quark's
own template for this family; Quark supports only globs.
"""

import tempfile
from pathlib import Path

import checkpoint
import make_quark  # before anything of Quark: it stands in for what torch has dropped
import record
import torch
from make_quark import ModelQuantizer, OCP_MXFP4Spec, QConfig, QLayerConfig

EXCLUDE = [
    "*self_attn*",
    "*mlp.gate",
    "*lm_head",
    "*mlp.gate_proj",
    "*mlp.up_proj",
    "*mlp.down_proj",
    "*shared_experts*",
    "*embed_tokens*",
]


def quantize(source: Path, target: Path) -> None:
    """Run Quark on the checkpoint on disk."""
    weight = OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False).to_quantization_spec()
    activation = OCP_MXFP4Spec(ch_axis=-1, is_dynamic=True).to_quantization_spec()
    layer = QLayerConfig(weight=weight, input_tensors=activation)
    quantizer = ModelQuantizer(QConfig(global_quant_config=layer, exclude=EXCLUDE))
    quantizer.direct_quantize_checkpoint(str(source), str(target), device="cpu")
    torch.set_default_dtype(torch.float32)  # Quark sets it and leaves it


def main() -> None:
    """Write the golden checkpoint of the installed version."""
    args = record.arguments(__doc__.splitlines()[0])
    if make_quark.kernel_ext is None:
        raise SystemExit("Quark's C++ kernel did not build: a C++ compiler and ninja are needed")
    golden = record.Record("amd-quark", __file__, ["compressed-tensors", "transformers"])
    with tempfile.TemporaryDirectory() as folder:
        source, target = checkpoint.write(Path(folder, "source")), Path(folder, "target")
        quantize(source, target)
        golden.write_checkpoint(args.out, args.wheel, source, target)


if __name__ == "__main__":
    main()
