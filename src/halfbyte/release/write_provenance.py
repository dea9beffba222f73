"""`python -m halfbyte.release.write_provenance OUT SRC`: the stage that writes where a checkpoint comes from."""

from __future__ import annotations

import sys
from pathlib import Path

from halfbyte.console import Output
from halfbyte.errors import CheckFailedError, CheckpointError, MachineError, UsageError


def main(out: str, source: str) -> int:
    """Write provenance.json; return the exit code."""
    from halfbyte.publish import provenance  # noqa: PLC0415 # pyright: ignore

    said = Output()
    try:
        said.note(str(provenance.write_provenance(Path(out), Path(source))))  # pyright: ignore
    except (CheckFailedError, CheckpointError, MachineError, UsageError) as error:
        said.error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
