"""`python -m halfbyte.release.write_provenance OUT SRC`: the stage that writes where a checkpoint comes from."""

from __future__ import annotations

import sys
from pathlib import Path

from halfbyte.console import Output
from halfbyte.errors import HalfbyteError


def main(out: str, source: str) -> int:
    """Write provenance.json; return the exit code."""
    from halfbyte.publish import provenance  # noqa: PLC0415 # pyright: ignore

    try:
        print(provenance.write_provenance(Path(out), Path(source)))  # pyright: ignore
    except HalfbyteError as error:
        Output().error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
