"""Run the tests that inject faults and write their counts: fault, injections, survived.

    python tests/faults/table.py benchmarks/results/fault_injection_MACHINE_YYYYMM

writes NAME.json (counts, machine, date, seconds, versions) and NAME.md (the table), and says how the tests ended.
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

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from tally import FAULT  # noqa: E402 - beside the tests, not in the package

import halfbyte  # noqa: E402

UNDER_FIRE = (
    "faults",
    "unit/validate/test_hung_endpoints.py",
    "unit/validate/probe/test_probe_hung_server.py",
    "unit/validate/evaluate/test_eval_hung_server.py",
)


class Counts:
    """What the reports of the tests carry, added up by fault, in the order in which they came."""

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


def main(name: Path) -> int:
    counts, begin = Counts(), time.monotonic()
    code = pytest.main(["-q", "-p", "no:xdist", *(str(TESTS / part) for part in UNDER_FIRE)], plugins=[counts])
    found = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - begin, 1),
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "load": os.getloadavg()},
        "python": platform.python_version(),
        "halfbyte": halfbyte.__version__,
        "command": "python tests/faults/table.py",
        "tests": counts.outcomes,
        "faults": [{"fault": fault, "injections": row[0], "survived": row[1]} for fault, row in counts.rows.items()],
    }
    name.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    name.with_suffix(".md").write_text(_page(found), encoding="utf-8")
    print((name.with_suffix(".md")).read_text(encoding="utf-8"))
    return int(code)


def _page(found: dict) -> str:
    tests = ", ".join(f"{count} {outcome}" for outcome, count in found["tests"].items())
    total = [sum(row[key] for row in found["faults"]) for key in ("injections", "survived")]
    rows = [f"| {row['fault']} | {row['injections']:,} | {row['survived']:,} |" for row in found["faults"]]
    return "\n".join(
        [
            "# Faults injected, and survived",
            "",
            f"{found['machine']['processor']}, {found['machine']['cores']} cores with a load of "
            f"{found['machine']['load'][0]:.0f}, {found['date'][:10]}, {found['seconds']:.0f} s; tests: {tests}. "
            f"`{found['command']}` wrote this page.",
            "",
            "| fault | injections | survived |",
            "| --- | --- | --- |",
            *rows,
            f"| all | {total[0]:,} | {total[1]:,} |",
            "",
        ]
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
