"""`python -m halfbyte.release.suite_check SUITE [DATA_DIR]`: load an eval suite's tasks and data without running them.

Loading changes lm-eval, the environment and the current folder, so the preflight runs it in a child process. The last
line of stdout is JSON: {"tasks": N}, or the parts of the error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from halfbyte.errors import CheckpointError, MachineError, UsageError


def main(suite: str, data_dir: str | None = None) -> int:
    """Load the suite, print the result and return the exit code."""
    from halfbyte.evaluate.harness import load_harness  # noqa: PLC0415 - lm-eval, only here
    from halfbyte.evaluate.suites import load_suite  # noqa: PLC0415

    try:
        loaded = load_harness(load_suite(suite), Path(data_dir) if data_dir else None)
    except (CheckpointError, MachineError, UsageError) as error:
        json.dump({"what": error.what, "fix": error.fix, "exit_code": error.exit_code}, sys.stdout)
        return error.exit_code
    json.dump({"tasks": len(loaded.suite.tasks)}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
