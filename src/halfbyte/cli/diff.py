"""The `halfbyte diff` command."""

from __future__ import annotations

from halfbyte.cli.command import command
from halfbyte.errors import CheckFailedError
from halfbyte.options.check import DiffOptions
from halfbyte.ui.console import Output


@command("diff", DiffOptions, example="halfbyte diff OUT OUT2")
def diff_command(out: Output, options: DiffOptions) -> None:
    """Compare the checkpoints A and B tensor by tensor: same bytes, same value, different, missing.

    If one was made from the other, its plan explains the expected differences: encoded linears with their SQNR, dropped
    and renumbered experts, config keys. Exit code 1 if a difference is not in the plan.
    """
    with out.activity("comparing tensors"):
        from halfbyte.audit.diff import diff

        result = diff(options.a, options.b)
    out.facts(result.as_dict(), result.lines())
    if result.planned or (result.equal and result.explained is None):
        return
    fix = "the names above differ; --json has all of them"
    if result.kept_equal and result.explained is None and result.renumbered is not None:
        fix = f"none needed: experts are missing as recorded in {result.renumbered.pruned}"
    raise CheckFailedError(result.verdict(), where=f"{options.a} and {options.b}", fix=fix)
