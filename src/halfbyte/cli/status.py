"""The `halfbyte status` command."""

from __future__ import annotations

import time

from halfbyte.cli.command import command
from halfbyte.options.inspect import StatusOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted

_REFRESH_S = 2


@command("status", StatusOptions, example="halfbyte status OUT --watch")
def status_command(out: Output, options: StatusOptions) -> None:
    """Show the progress of a run. Works from any terminal."""
    from halfbyte.cli import pipeline_output as show
    from halfbyte.release.status import read_status

    while True:
        status = read_status(options.out_folder)
        show.status(out, status)
        if not options.watch or status.whole:
            break
        time.sleep(_REFRESH_S)
    unfinished, folder = not status.whole or status.verdict == "UNFINISHED", pasted(options.out_folder)
    then = f"publish {folder} REPO" if status.verdict == "ACCEPT" else f"audit {folder}"
    out.hint("run the same command again to resume" if unfinished else f"halfbyte {then}")
