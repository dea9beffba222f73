"""The command `halfbyte report`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.terminal.console import Output
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.usage import Command


@click.command("report", cls=Command)
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--open", "show", is_flag=True, help="Open it in a browser.")
@click.pass_obj
def report_command(out: Output, out_folder: Path, show: bool) -> None:
    """Write all that is known of OUT into one HTML file, OUT/halfbyte/report.html, which needs no network."""
    from halfbyte.publish.report.page import write_report  # noqa: PLC0415 - `halfbyte --help` stays instant

    path = write_report(out_folder)
    facts = {"report": str(path), "nbytes": path.stat().st_size}
    out.facts(facts, [("report", str(path)), ("size", f"{facts['nbytes']:,} bytes")])
    if show:
        import webbrowser  # noqa: PLC0415

        webbrowser.open(path.resolve().as_uri())
    out.hint(f"halfbyte card {pasted(out_folder)}")
