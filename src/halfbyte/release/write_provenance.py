"""`python -m halfbyte.release.write_provenance OUT SRC`: write provenance.json of a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from halfbyte.errors import CheckFailedError, CheckpointError, MachineError, UsageError
from halfbyte.ui.console import Output

_WORDS = 2  # OUT and SRC


def main(*words: str) -> int:
    """Write provenance.json; return the exit code."""
    from halfbyte.publish.provenance import write_provenance  # noqa: PLC0415

    output = Output()
    try:
        if len(words) != _WORDS:
            fix = "run python -m halfbyte.release.write_provenance OUT SRC"
            raise UsageError(f"expected two folders, got {len(words)}", where="write_provenance", fix=fix)
        out, source = words
        output.note(str(write_provenance(Path(out), Path(source))))
    except (CheckFailedError, CheckpointError, MachineError, UsageError) as error:
        output.error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
