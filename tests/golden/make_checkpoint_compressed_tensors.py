"""A golden checkpoint of compressed-tensors: the INT4 checkpoint decompressed to BF16, file to file."""

import tempfile
from pathlib import Path

import checkpoint
import record
from compressed_tensors.entrypoints.convert import convert_checkpoint
from compressed_tensors.entrypoints.convert.converters.ct_dequantizer import CompressedTensorsDequantizer


def main() -> None:
    """Write the golden checkpoint of the installed version."""
    args = record.arguments(__doc__.splitlines()[0])
    golden = record.Record("compressed-tensors", __file__, ["transformers"])
    with tempfile.TemporaryDirectory() as folder:
        source, target = checkpoint.write(Path(folder, "source")), Path(folder, "target")
        convert_checkpoint(source, target, CompressedTensorsDequantizer(source), device="cpu")
        golden.write_checkpoint(args.out, args.wheel, source, target)


if __name__ == "__main__":
    main()
