"""What `inspect` and `plan` cost on the headers of whole models: seconds of a core, seconds by the clock, and memory.

    python benchmarks/bench_headers.py --machine xeon-2core

208,550 tensors (Kimi-K2.6 to the byte, synth.py) and 497,220 (of Kimi-K3's size, synth_k3.py); every command in a
process of its own. Writes benchmarks/results/headers_<machine>_<yyyymm>.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from synth import write_headers
from synth_k3 import write_k3_like

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ("-r", "kimi-k2.6-nvfp4a16", "--no-measure")
MODELS: Mapping[str, Callable[[Path], dict[str, int]]] = {"k2.6": write_headers, "k3-like": write_k3_like}
# The peak by its own words: the kernel's count for a child begins with the memory of the process that forked it.
_COMMAND = """
import sys
from pathlib import Path
from halfbyte.cli.main import run
code = run(sys.argv[1:])
print("peak", Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
sys.exit(code)
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The exit of a command, and its cost."""

    code: int
    core_seconds: float
    wall_seconds: float
    peak_mb: float
    printed: str


def measured(*argv: object) -> Measured:
    """Run a command of halfbyte in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", _COMMAND, *map(str, argv)]
    begin = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    printed, _, peak = process.stdout.read().rpartition("peak ")
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    core = used.ru_utime + used.ru_stime
    return Measured(process.returncode, core, time.monotonic() - begin, int(peak) / 1e3, printed)


def commands(folder: Path, scratch: Path) -> dict[str, tuple[object, ...]]:
    """Return the measurements by the label of their row."""
    return {
        "inspect": ("inspect", folder),
        "inspect --json": ("inspect", folder, "--json"),
        "plan": ("plan", folder, *RECIPE),
        "plan --json": ("plan", folder, *RECIPE, "--json"),
        "plan -o": ("plan", folder, *RECIPE, "-o", scratch / "plan.json"),
    }


def rows(models: Mapping[str, Callable[[Path], dict[str, int]]]) -> list[dict[str, object]]:
    """Measure every command on every model."""
    found: list[dict[str, object]] = []
    for model, write in models.items():
        with tempfile.TemporaryDirectory(prefix="halfbyte-headers-") as scratch:
            counted = write(Path(scratch) / model)
            for words, command in commands(Path(scratch) / model, Path(scratch)).items():
                cost = asdict(measured(*command))
                printed = cost.pop("printed")
                if cost["code"]:
                    sys.exit(f"{words}: {printed}")
                row = {"model": model, "tensors": counted["tensors"], "command": words, **cost, "printed": len(printed)}
                print(
                    f"{model:8} {words:15} {cost['core_seconds']:6.1f} s of a core {cost['wall_seconds']:6.1f} s "
                    f"{cost['peak_mb']:7,.0f} MB {len(printed):12,} characters",
                    flush=True,
                )
                found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default=platform.machine(), help="for the result's name")
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("-o", "--output", type=Path, help="the result's file")
    given = parser.parse_args()
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)  # before any work
    today = datetime.datetime.now(tz=datetime.timezone.utc)
    output = given.output or ROOT / f"benchmarks/results/headers_{given.machine}_{today:%Y%m}.json"
    chosen = {given.only: MODELS[given.only]} if given.only else MODELS
    result = {"date": f"{today:%Y-%m-%d}", "python": platform.python_version(), "rows": rows(chosen)}
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
