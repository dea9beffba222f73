"""The `halfbyte audit` command, with deferred imports."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.cli.usage import Command
from halfbyte.errors import CheckFailedError
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@click.command("audit", cls=Command, example="halfbyte audit OUT --against SRC")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--against", "source", metavar="SRC", type=click.Path(path_type=Path), help="Source checkpoint to compare with."
)
@click.option("--sample", type=click.IntRange(0), default=2, show_default=True,
              help="Groups of linears per layer to encode again and compare.")  # fmt: skip
@click.option("--engine", type=click.Choice(["vllm"]),
              help="Also check that the installed vLLM accepts every tensor name. Needs no GPU.")  # fmt: skip
@click.pass_obj
def audit_command(out: Output, out_folder: Path, source: Path | None, sample: int, engine: str | None) -> None:
    """Check that OUT matches its plan and that engines will load it correctly. Exit code 1 if not."""
    with out.activity("reading headers") as activity:
        from halfbyte.audit.run import audit, save

        report = audit(out_folder, against=source, sample=sample, engine=engine, activity=activity)
    if out.as_json:
        out.facts(report.record().as_json(), [])
    out.verdicts(report.sentences())
    saved = save(report)  # after the verdicts: a read-only folder can still be audited
    if not report.passed:
        raise CheckFailedError(
            report.summary(), where=str(saved or out_folder), fix="follow the fix of each failed check above"
        )
    out.note(f"{report.summary()} in {report.seconds:.1f} s" + (f"; {saved}" if saved else ""))
    pruned = any(finding.check == "prune" for finding in report.findings)  # pruned experts are renumbered
    out_path, source_path = pasted(out_folder), pasted(source or "SRC")
    if source is None:
        out.hint(f"halfbyte audit {out_path} --against SRC")
    elif pruned:
        out.hint(f"halfbyte loops {out_path} --against {source_path}")
    else:
        keep = f" -o {out_path}/halfbyte/compare.json" if saved else ""
        out.hint(f"halfbyte compare {source_path} {out_path} --data DOMAIN=FILE{keep}")
