"""The command `halfbyte audit`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.errors import CheckFailedError
from halfbyte.terminal.console import Output
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.usage import Command


@click.command("audit", cls=Command)
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--against", "source", metavar="SRC", type=click.Path(path_type=Path), help="The source it was made from."
)
@click.option("--sample", type=click.IntRange(0), default=2, show_default=True,
              help="Groups of linears of each layer to encode again.")  # fmt: skip
@click.option("--engine", type=click.Choice(["vllm"]),
              help="Let the installed vLLM load every name as well; no GPU, no weight is read.")  # fmt: skip
@click.pass_obj
def audit_command(out: Output, out_folder: Path, source: Path | None, sample: int, engine: str | None) -> None:
    """Check that OUT is what was planned, and that engines will read it so. Exit code 1 if not."""
    from halfbyte.audit.run import audit, save  # noqa: PLC0415 - `halfbyte --help` stays instant

    found = audit(out_folder, against=source, sample=sample, engine=engine)
    if out.as_json:
        out.facts(found.as_dict(), [])
    out.verdicts(found.sentences())
    saved = save(found)  # after the verdicts: a folder that cannot be written to can still be judged
    if found.failed:
        raise CheckFailedError(found.summary(), where=str(saved or out_folder), fix="do what each of them says above")
    out.note(f"{found.summary()} in {found.seconds:.1f} s" + (f"; {saved}" if saved else ""))
    pruned = any(finding.check == "prune" for finding in found.findings)  # whose experts have other numbers
    next_one = f"halfbyte {'loops' if pruned else 'diff'}"
    made, of = pasted(out_folder), pasted(source or "SRC")
    against = f"{made} --against {of}" if pruned else f"{of} {made}"
    out.hint(f"{next_one} {against}" if source else f"halfbyte audit {made} --against SRC")
