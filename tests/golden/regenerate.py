"""Regenerate the golden vectors, each peer in its own environment, and compare them with the committed ones.

Exit status 0: all equal; 1: something differs.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent

# file stem: (package, script)
PEERS = {
    "modelopt-0.41.0": ("nvidia-modelopt", "make_modelopt.py"),
    "modelopt-0.47.0": ("nvidia-modelopt", "make_modelopt.py"),
    "modelopt-calibrated-0.41.0": ("nvidia-modelopt", "make_calibrated_modelopt_0_41.py"),
    "modelopt-calibrated-0.47.0": ("nvidia-modelopt", "make_calibrated_modelopt.py"),
    "compressed-tensors-0.17.1": ("compressed-tensors", "make_compressed_tensors.py"),
    "compressed-tensors-0.20.0": ("compressed-tensors", "make_compressed_tensors.py"),
    "quark-0.11.1": ("amd-quark", "make_quark.py"),
    "checkpoint-compressed-tensors-0.20.0": ("compressed-tensors", "make_checkpoint_compressed_tensors.py"),
    "checkpoint-quark-0.11.1": ("amd-quark", "make_checkpoint_quark.py"),
    "parsed-quark-0.11.1": ("amd-quark", "make_parsed_quark.py"),
    "parsed-quark-0.13": ("amd-quark", "make_parsed_quark.py"),
    "parsed-compressed-tensors-0.20.0": ("compressed-tensors", "make_parsed_compressed_tensors.py"),
    "parsed-modelopt-0.47.0": ("nvidia-modelopt", "make_parsed_modelopt.py"),
    "llmcompressor-0.14.0.1": ("llmcompressor", "make_reap.py"),
    "statistics": ("statsmodels", "make_statistics.py"),  # and scipy; nothing here is quantized
}
CHECKPOINT, PARSED = "checkpoint-", "parsed-"  # made in the environment of the same peer
ONLY_JSON = (CHECKPOINT, PARSED, "modelopt-calibrated-", "llmcompressor-", "statistics")  # no tensors are kept
FIGURES = "statistics"  # floating point by other libraries: compared as a whole, and closely
COMPARED_FACTS = {
    "wheel_sha256",
    "inputs_sha256",
    "outputs_sha256",
    "refused",
    "source_sha256",
    "quantization_config",
    "tensors",
    "parsed",
    "tokens_sha256",
    "models",
}
CLOSE_FACTS = {"saliencies"}  # means of FP32 router weights: the last bits depend on the CPU's matrix products
CLOSE = 1e-6


def build_environment(folder: Path, stem: str) -> Path:
    """A virtual environment with the peer's pinned requirements; an existing complete one is reused."""
    requirements = HERE / f"requirements-{stem}.txt"
    done = folder / "requirements.txt"
    if not (done.exists() and done.read_text() == requirements.read_text()):
        venv.create(folder, with_pip=True, clear=True)
        pip(folder, "install", "--quiet", "--requirement", str(requirements))
        shutil.copyfile(requirements, done)
    return folder


def suffixes(stem: str) -> tuple[str, ...]:
    """The files of a golden."""
    return ("json",) if stem.startswith(ONLY_JSON) else ("safetensors", "json")


def pip(environment: Path, *arguments: str) -> None:
    """Run an environment's pip."""
    subprocess.run([environment / "bin/python", "-m", "pip", *arguments], check=True)


def download_wheel(environment: Path, package: str, version: str) -> Path:
    """The peer's wheel as the index serves it, for its hash."""
    wheels = environment / "wheels"
    if not wheels.exists():
        pip(environment, "download", "--quiet", "--no-deps", "--dest", str(wheels), f"{package}=={version}")
    (wheel,) = wheels.iterdir()
    return wheel


def make(environment: Path, stem: str, out: Path) -> None:
    """Run the peer's script into `out`."""
    package, script = PEERS[stem]
    if stem == FIGURES:
        subprocess.run([environment / "bin/python", HERE / script, out / f"{stem}.json"], check=True)
        return
    wheel = download_wheel(environment, package, stem.rpartition("-")[2])
    settings = {
        "ATEN_CPU_CAPABILITY": "default",
        "TORCH_EXTENSIONS_DIR": str(environment / "extensions"),  # Quark builds a kernel
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",  # and finds ninja there
    }
    command = [environment / "bin/python", HERE / script, out, "--wheel", wheel]
    with (out / f"{stem}.log").open("w") as log:
        subprocess.run(command, check=True, env=os.environ | settings, cwd=out, stdout=log, stderr=log)


def same(stem: str, out: Path) -> bool:
    """Compare tensors by bytes, and JSON without machine-dependent facts."""
    equal = True
    for suffix in suffixes(stem):
        old, new = HERE / f"{stem}.{suffix}", out / f"{stem}.{suffix}"
        if suffix == "json":
            facts = [json.loads(path.read_text()) for path in (old, new)]
            keys = CLOSE_FACTS if stem != FIGURES else facts[0].keys() | facts[1].keys()
            matches = all(facts[0].get(key) == facts[1].get(key) for key in COMPARED_FACTS)
            matches &= all(close(facts[0].get(key), facts[1].get(key)) for key in keys)
        else:
            matches = old.read_bytes() == new.read_bytes()
        print(f"{'equal    ' if matches else 'different'}  {old.name}", flush=True)
        equal &= matches
    return equal


def close(one: object, other: object) -> bool:
    """Return whether two facts are equal up to the last bits of fractions."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other


def main() -> int:
    """Regenerate and compare, one peer at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", type=Path, default=Path(".golden-envs"), help="where environments are built")
    parser.add_argument("--only", choices=PEERS, action="append", help="a peer to run (default: all)")
    parser.add_argument("--update", action="store_true", help="replace the committed files instead of comparing")
    args = parser.parse_args()
    equal = True
    for stem in args.only or PEERS:
        peer = stem.removeprefix(CHECKPOINT).removeprefix(PARSED)
        environment = build_environment(args.envs.resolve() / peer, peer)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            make(environment, stem, out)
            if args.update:
                for suffix in suffixes(stem):
                    shutil.copyfile(out / f"{stem}.{suffix}", HERE / f"{stem}.{suffix}")
            else:
                equal &= same(stem, out)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
