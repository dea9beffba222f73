"""Record a peer's outputs: small tensors in safetensors, hashes of all in JSON."""

import argparse
import hashlib
import importlib.util
import json
import platform
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

import checkpoint
import inputs
import numpy as np
import torch
from safetensors.torch import save_file

# Inputs at the limits of a format; any other error of a peer is our mistake.
MAY_BE_REFUSED = {"all_zero", "all_denormal", "denormals", "huge", "extreme_scales"}


def arguments(description: str) -> argparse.Namespace:
    """The command line that all make scripts share."""
    if importlib.util.find_spec("halfbyte"):
        raise SystemExit("halfbyte is importable here: golden vectors come from an environment without it")
    # ATen picks its kernels by the CPU it finds, and the order of sums may follow.
    if torch.backends.cpu.get_cpu_capability() != "DEFAULT":
        raise SystemExit("set ATEN_CPU_CAPABILITY=default, so that every x86-64 machine takes the same kernels")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("out", type=Path, help="directory to write to")
    parser.add_argument("--wheel", type=Path, required=True, help="the peer's wheel, as downloaded")
    return parser.parse_args()


def bf16_tensor(patterns: np.ndarray) -> torch.Tensor:
    """BF16 bit patterns as a torch tensor."""
    return torch.from_numpy(patterns.view(np.int16).copy()).view(torch.bfloat16)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """A tensor's elements, row by row, little-endian."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


class Record:
    """The outputs of one version of one peer."""

    def __init__(self, peer: str, script: str, others: Iterable[str] = ()) -> None:
        """Start the record of `peer`, with the versions of `others`."""
        self.peer, self.version = peer, version(peer)
        self.script = Path(script)
        self.others = {name: version(name) for name in ("numpy", "safetensors", *others)}
        self.tensors: dict[str, torch.Tensor] = {}
        self.hashes: dict[str, str] = {}
        self.input_hashes: dict[str, str] = {}
        self.refused: dict[str, str] = {}

    def case(
        self, name: str, sources: tuple[np.ndarray, ...], run: Callable[[], dict], *, hash_only: Iterable[str] = ()
    ) -> None:
        """Run the peer on `<recipe>/<case>` and keep the result; an error or a NaN is only noted."""
        _, case = name.split("/")
        self.input_hashes[case] = inputs.sha256(*sources)
        try:
            outputs = run()
            with_nan = [key for key, t in outputs.items() if t.is_floating_point() and t.float().isnan().any()]
            if with_nan:
                raise ArithmeticError(f"NaN in {', '.join(with_nan)}")
        except Exception as error:
            if case not in MAY_BE_REFUSED:
                raise
            self.refused[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return
        hash_only = set(hash_only)
        for key, tensor in outputs.items():
            self.keep(f"{name}/{key}", tensor, stored=not hash_only & {key, "*"})

    def keep(self, name: str, tensor: torch.Tensor, *, stored: bool = True) -> None:
        """Hash a tensor, and store it unless it is too large; FP8 is stored as its bit patterns."""
        self.hashes[name] = hashlib.sha256(raw_bytes(tensor)).hexdigest()
        if stored:
            is_fp8 = tensor.dtype == torch.float8_e4m3fn
            self.tensors[name] = (tensor.view(torch.uint8) if is_fp8 else tensor.detach()).clone().contiguous()

    def write(self, out: Path, wheel: Path) -> None:
        """Write <peer>-<version>.safetensors and .json into `out`."""
        out.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors, out / f"{self.stem}.safetensors")
        facts = self.provenance(wheel) | {
            "inputs_sha256": dict(sorted(self.input_hashes.items())),
            "outputs_sha256": dict(sorted(self.hashes.items())),
            "refused": dict(sorted(self.refused.items())),
        }
        (out / f"{self.stem}.json").write_text(json.dumps(facts, indent=1) + "\n")

    def write_checkpoint(self, out: Path, wheel: Path, source: Path, target: Path) -> None:
        """Write checkpoint-<peer>-<version>.json: the peer's output for the checkpoint in `source`."""
        out.mkdir(parents=True, exist_ok=True)
        facts = self.provenance(wheel) | {
            "source_sha256": checkpoint.sha256(source),
            "quantization_config": json.loads((target / "config.json").read_text()).get("quantization_config"),
            "tensors": checkpoint.contents(target),
        }
        (out / f"checkpoint-{self.stem}.json").write_text(json.dumps(facts, indent=1) + "\n")

    def write_parsed(self, out: Path, wheel: Path, parse: Callable[[dict], dict]) -> None:
        """Write parsed-<peer>-<version>.json: each config of config_blocks.json beside what the peer reads in it.

        `parse` gets the configs of one checkpoint by file, and returns nothing where none of them is the peer's.
        """
        out.mkdir(parents=True, exist_ok=True)
        blocks = json.loads(Path(__file__).with_name("config_blocks.json").read_text())
        parsed = {
            name: {"given": configs, "read": read} for name, configs in blocks.items() if (read := parse(configs))
        }
        facts = self.provenance(wheel) | {"parsed": parsed}
        (out / f"parsed-{self.stem}.json").write_text(json.dumps(facts, indent=1) + "\n")

    @property
    def stem(self) -> str:
        """The peer and its version, as files are named."""
        return f"{self.peer.removeprefix('nvidia-').removeprefix('amd-')}-{self.version}"

    def provenance(self, wheel: Path) -> dict[str, str]:
        """The versions that produced the record."""
        return {
            "peer": self.peer,
            "version": self.version,
            "wheel": wheel.name,
            "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            **self.others,
            "script": self.script.name,
            "script_sha256": hashlib.sha256(self.script.read_bytes()).hexdigest(),
        }
