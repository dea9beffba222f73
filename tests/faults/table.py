"""Run the fault injection tests and write their counts: fault, injections, survived.

    python tests/faults/table.py benchmarks/results/fault_injection_MACHINE_YYYYMM

writes NAME.json (counts, and for each run machine, date, seconds, versions) and NAME.md (the table), and prints the
test results. With test files after the name, only these are run, and their faults replace those of earlier runs.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tally import FAULT

import halfbyte

TESTS = Path(__file__).parents[1]
UNDER_FIRE = (
    "faults",
    "unit/endpoint/test_hung_endpoints.py",
    "unit/probe/test_probe_hung_server.py",
    "unit/evaluate/test_eval_hung_server.py",
)


class Counts:
    """Fault counts of the test reports, summed by fault, in order of arrival."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.outcomes: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.skipped:
            self.outcomes[report.outcome] = self.outcomes.get(report.outcome, 0) + 1
        for name, row in report.user_properties if report.when == "call" else ():
            if name == FAULT:
                found = self.rows.setdefault(row["fault"], [0, 0])
                found[0] += row["injections"]
                found[1] += row["survived"]


def main(name: Path, *files: str) -> int:
    counts, begin, kept = Counts(), time.monotonic(), name.with_suffix(".json")
    before = json.loads(kept.read_text(encoding="utf-8")) if files else {"runs": [], "faults": []}
    code = pytest.main(
        ["-q", "-p", "no:xdist", *(files or (str(TESTS / part) for part in UNDER_FIRE))], plugins=[counts]
    )
    run = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - begin, 1),
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "load": os.getloadavg()},
        "python": platform.python_version(),
        "halfbyte": halfbyte.__version__,
        "files": [Path(file).name for file in files],
        "tests": counts.outcomes,
    }
    rows = {row["fault"]: row for row in before["faults"]}
    rows |= {fault: {"fault": fault, "injections": n[0], "survived": n[1]} for fault, n in counts.rows.items()}
    found = {"runs": [*before["runs"], run], "faults": list(rows.values())}
    kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    name.with_suffix(".md").write_text(_page(found), encoding="utf-8")
    print((name.with_suffix(".md")).read_text(encoding="utf-8"))
    return int(code)


def _page(found: dict) -> str:
    total = [sum(row[key] for row in found["faults"]) for key in ("injections", "survived")]
    rows = [f"| {row['fault']} | {row['injections']:,} | {row['survived']:,} |" for row in found["faults"]]
    return "\n".join(
        [
            "# Faults injected, and survived",
            "",
            "`python tests/faults/table.py` wrote this page; of a fault that several runs injected, the last counts.",
            "",
            *(f"- {_line(run)}" for run in found["runs"]),
            "",
            "| fault | injections | survived |",
            "| --- | --- | --- |",
            *rows,
            f"| all | {total[0]:,} | {total[1]:,} |",
            "",
        ]
    )


def _line(run: dict) -> str:
    machine, tests = run["machine"], ", ".join(f"{count} {outcome}" for outcome, count in run["tests"].items())
    where = f"{machine['processor']}, {machine['cores']} cores with a load of {machine['load'][0]:.0f}"
    return f"{run['date']}, {where}, {' and '.join(run['files']) or 'all'}: tests {tests}, {run['seconds']:.0f} s"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
