"""The `halfbyte report` command."""

from __future__ import annotations

from halfbyte.cli.command import command
from halfbyte.options.publish import ReportOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@command("report", ReportOptions, example="halfbyte report OUT --open")
def report_command(out: Output, options: ReportOptions) -> None:
    """Write the HTML report, OUT/halfbyte/report.html, from the evidence in OUT. It works offline."""
    from halfbyte.cli.hash_progress import hash_output
    from halfbyte.publish.report.page import write_report

    hash_output(out, options.out_folder)
    path = write_report(options.out_folder)
    facts = {"report": str(path), "nbytes": path.stat().st_size}
    out.facts(facts, [("report", str(path)), ("size", f"{facts['nbytes']:,} bytes")])
    if options.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    out.hint(f"halfbyte card {pasted(options.out_folder)}")
