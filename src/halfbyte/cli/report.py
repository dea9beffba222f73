"""The `halfbyte report` command, with deferred imports."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.cli.usage import Command
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@click.command("report", cls=Command, example="halfbyte report OUT --open")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--open", "show", is_flag=True, help="Open the report in a browser.")
@click.pass_obj
def report_command(out: Output, out_folder: Path, show: bool) -> None:
    """Write the HTML report, OUT/halfbyte/report.html, from the evidence in OUT. It works offline."""
    from halfbyte.cli.hash_progress import hash_output
    from halfbyte.publish.report.page import write_report

    hash_output(out, out_folder)
    path = write_report(out_folder)
    facts = {"report": str(path), "nbytes": path.stat().st_size}
    out.facts(facts, [("report", str(path)), ("size", f"{facts['nbytes']:,} bytes")])
    if show:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    out.hint(f"halfbyte card {pasted(out_folder)}")
