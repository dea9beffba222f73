"""The command `halfbyte diff`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.errors import CheckFailedError
from halfbyte.terminal.console import Output
from halfbyte.terminal.usage import Command


@click.command("diff", cls=Command)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.pass_obj
def diff_command(out: Output, a: Path, b: Path) -> None:
    """Compare the checkpoints A and B tensor by tensor: same bytes, same value, different, missing.

    If one is the other, pruned, experts are compared by the numbers that they had. Exit code 1 unless all is the same.
    """
    from halfbyte.audit.diff import diff  # noqa: PLC0415 - `halfbyte --help` stays instant

    found = diff(a, b)
    out.facts(found.as_dict(), found.lines())
    if not found.equal:
        fix = "the names above differ; --json has all of them"
        if found.alike:
            fix = f"nothing: experts are missing, as {found.renumbered.pruned} records" if found.renumbered else ""
        raise CheckFailedError(found.verdict(), where=f"{a} and {b}", fix=fix)
