"""Which probe finds which fault: kimi-mini in NVFP4 behind a real vLLM, healthy, then with one seeded fault at a time.

    PYTHONPATH=src python -m benchmarks.fault_table RUNS -o benchmarks/results/faults_kimi-mini_202611.json
    PYTHONPATH=src python -m benchmarks.fault_table RUNS --healthy 10 --of int4,nvfp4-modelopt -o ...
    PYTHONPATH=src python -m benchmarks.fault_table RUNS --no-reference --budget 3m -o ...   # as in the demo

Faults of files are shown to `audit` first, with the source beside them. The reference server has the INT4 source. Runs
that are in RUNS are not repeated; the table (JSON and Markdown) is written after each. Activations are quantized only
with --w4a4: no fault is in them, and emulating them makes a CPU several times slower.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "live")]

from emulated_server import EmulatedServer, cpu_options  # noqa: E402
from seeded_faults import FAULTS, Fault  # noqa: E402
from served_variants import KIMI_MINI, make_variant  # noqa: E402

from halfbyte.serve.installed import installed  # noqa: E402
from halfbyte.serve.ports import listening_process, next_free_port  # noqa: E402

OPTIONS = [
    "--quantization", "halfbyte_emulate", "--served-model-name", "mini", "--max-model-len", "4096",
    "--max-num-seqs", "8", "--max-num-batched-tokens", "4096", "--enforce-eager",
    "--limit-mm-per-prompt", '{"image": 0, "video": 0, "vision_chunk": 0}',
]  # fmt: skip
PROXY = ROOT / "tests" / "live" / "faulty_proxy.py"
PASSED, FAILED = "passed", "failed"


@dataclass(frozen=True, slots=True)
class Asked:
    """What every run of `halfbyte probe` gets beside its own URL."""

    reference: str | None  # the URL of the INT4 source
    budget: str | None


def halfbyte(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "halfbyte", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@contextlib.contextmanager
def served(fault: Fault, folder: Path, log: Path, *, w4a4: bool = False) -> Iterator[str]:
    """Serve a folder as a fault says; give the address, the proxy's where there is one."""
    vllm = installed("vllm")
    options = [*OPTIONS, *fault.parsers, *fault.options, *cpu_options(vllm)]
    environment = fault.environment | {"HALFBYTE_EMULATE_ACTIVATIONS": "on" if w4a4 else "off"}
    server = EmulatedServer(vllm.command, folder, log, options, environment)
    try:
        with proxied(server.url, fault.proxy) as url:
            yield url
    finally:
        server.stop()


@contextlib.contextmanager
def proxied(url: str, how: str | None) -> Iterator[str]:
    if how is None:
        yield url
        return
    port = next_free_port()
    process = subprocess.Popen([sys.executable, str(PROXY), str(port), url.rpartition(":")[2], how])
    try:
        while listening_process(port) is None:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def audited(folder: Path) -> str:
    """Return what audit finds first; nothing if it is content."""
    found = halfbyte("audit", folder, "--against", KIMI_MINI, "--engine", "vllm", "--json", "--quiet")
    if found.returncode == 0:
        return ""
    said = [line.strip() for line in found.stderr.splitlines() if line.strip()]
    return said[0] if said else f"exit code {found.returncode}"


def probed(url: str, asked: Asked, out: Path, seed: int) -> dict[str, Any]:
    options = ["--against", asked.reference] if asked.reference else []
    options += ["--budget", asked.budget] if asked.budget else []
    found = halfbyte("probe", url, *options, "--profile", "mini", "--seed", seed, "-o", out, "--quiet")
    if not (out / "probe.json").is_file():
        raise SystemExit(f"probe wrote no report (exit code {found.returncode}):\n{found.stderr}")
    return json.loads((out / "probe.json").read_text())


def run_fault(fault: Fault, runs: Path, asked: Asked) -> dict[str, Any]:
    """Audit, serve and probe one fault."""
    begin, row = time.monotonic(), {"name": fault.name, "what": fault.what}
    folder = fault.folder(runs / "variants", runs)
    row["audit"] = audited(folder) if fault.damage else None
    try:
        with served(fault, folder, runs / f"{fault.name}.log") as url:
            report = probed(url, asked, runs / fault.name, seed=0)
    except AssertionError as error:  # the engine did not start
        return row | {"start": str(error).strip().splitlines()[-1], "caught": []}
    probes = report["probes"]
    row["caught"] = [one["name"] for one in probes if one["verdict"] not in (PASSED, "skipped")]
    row["gates"] = [one["name"] for one in probes if one["verdict"] not in (PASSED, "skipped") and one["gate"]]
    row["skipped"] = [one["name"] for one in probes if one["verdict"] == "skipped"]
    return row | {"passed": report["counts"][PASSED], "seconds": round(time.monotonic() - begin)}


def run_healthy(name: str, runs: Path, seeds: list[int], asked: Asked, *, w4a4: bool) -> Iterator[dict[str, Any]]:
    """Probe a healthy variant with each of these seeds."""
    fault = Fault("healthy", name, variant=name)
    with served(fault, make_variant(name, runs / "variants"), runs / f"{name}.log", w4a4=w4a4) as url:
        for seed in seeds:
            begin = time.monotonic()
            report = probed(url, asked, runs / f"{name}-{seed}", seed)
            alarms = [one["name"] for one in report["probes"] if one["verdict"] not in (PASSED, "skipped")]
            row = {"variant": name + "-w4a4" * w4a4, "seed": seed, "alarms": alarms, "counts": report["counts"]}
            yield row | {"seconds": round(time.monotonic() - begin)}


def markdown(table: dict[str, Any]) -> str:
    """Return the table as people read it."""
    lines = ["| fault | audit, or the start | gates that fail | other probes that see it |", "|---|---|---|---|"]
    for row in table["faults"]:
        first = row.get("start") or row["audit"] or ("finds nothing" if row["audit"] == "" else "not a fault of files")
        gates = row.get("gates", [])
        others = [name for name in row["caught"] if name not in gates]
        lines.append(f"| {row['what']} | {first} | {', '.join(gates)} | {', '.join(others)} |")
    lines += ["", "| healthy | runs | alarms |", "|---|---|---|"]
    for name in dict.fromkeys(row["variant"] for row in table["healthy"]):
        rows = [row for row in table["healthy"] if row["variant"] == name]
        lines.append(f"| {name} | {len(rows)} | {sum(bool(row['alarms']) for row in rows)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fill the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of faults, with commas")
    parser.add_argument("--healthy", type=int, default=0, help="seeds of each healthy variant, instead of faults")
    parser.add_argument("--of", default="int4,nvfp4-modelopt")
    parser.add_argument("--w4a4", action="store_true")
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--budget", help="of each run of the probes, as in 3m")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)  # before any work
    asked.runs.mkdir(parents=True, exist_ok=True)
    table = json.loads(asked.out.read_text()) if asked.out.is_file() else {"faults": [], "healthy": []}

    def write() -> None:
        asked.out.write_text(json.dumps(table, indent=1) + "\n")
        asked.out.with_suffix(".md").write_text(markdown(table))

    source = Fault("reference", "the INT4 source", variant="int4")
    reference = contextlib.nullcontext(None) if asked.no_reference else served(
        source, make_variant("int4", asked.runs / "variants"), asked.runs / "reference.log"
    )  # fmt: skip
    with reference as url:
        each = Asked(url, asked.budget)
        for name in asked.of.split(",") if asked.healthy else []:
            kept = {row["seed"] for row in table["healthy"] if row["variant"] == name + "-w4a4" * asked.w4a4}
            seeds = [seed for seed in range(asked.healthy) if seed not in kept]
            for row in run_healthy(name, asked.runs, seeds, each, w4a4=asked.w4a4) if seeds else ():
                table["healthy"].append(row)
                print(row, flush=True)
                write()
        wanted = asked.only.split(",") if asked.only else [fault.name for fault in FAULTS]
        done = {row["name"] for row in table["faults"]}
        for fault in FAULTS if not asked.healthy else ():
            if fault.name in wanted and fault.name not in done:
                table["faults"].append(run_fault(fault, asked.runs, each))
                print(table["faults"][-1], flush=True)
                write()


if __name__ == "__main__":
    main()
