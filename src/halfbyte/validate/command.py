"""The command `halfbyte loops`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.errors import CheckFailedError
from halfbyte.terminal.console import Output
from halfbyte.terminal.usage import Command

_FOLDER = click.Path(path_type=Path)


@click.command("loops", cls=Command)
@click.argument("folder", metavar="OUT", type=_FOLDER)
@click.option("--against", "source", metavar="SRC", type=_FOLDER, help="Ask this one too, and compare.")
@click.option("--prompts", "count", type=click.IntRange(1), help="How many of the 64 prompts.  [default: all]")
@click.option("--tokens", type=click.IntRange(1), default=512, show_default=True, help="The longest text.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the texts at temperature 0.7.")
@click.pass_obj
def loops_command(out: Output, folder: Path, source: Path | None, count: int | None, tokens: int, seed: int) -> None:
    """Ask OUT for open-ended texts, and say how many fall into a loop. Exit code 1 if too many.

    For models that fit into memory decoded. Each prompt is answered greedily and at temperature 0.7. What was found is
    kept in halfbyte/loops.json of a checkpoint that halfbyte made.
    """
    from halfbyte.validate.after_pruning import keep_judged  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.validate.loop_rate import Judged, judge, loop_rate  # noqa: PLC0415
    from halfbyte.validate.prompts import open_prompts  # noqa: PLC0415

    prompts = open_prompts(count)
    found = loop_rate(folder, prompts=prompts, tokens=tokens, seed=seed)
    beside = None if source is None else loop_rate(source, prompts=prompts, tokens=tokens, seed=seed)
    verdict = judge(found, beside)
    lines = [
        ("texts", f"{found.texts}: {len(prompts)} prompts, greedily and at temperature 0.7, {tokens} tokens or fewer"),
        ("short", f"{found.short} end after a few words"),
        ("unfinished", f"{found.unfinished} without looping"),
        *(("looping", example) for example in found.examples),
    ]
    judged = Judged(found, beside, verdict)
    out.facts(judged.as_dict(), lines)
    out.verdicts([(verdict.level, verdict.sentence)])
    keep_judged(folder, judged, tokens)
    if verdict.flagged:
        raise CheckFailedError(verdict.sentence, where=str(folder), fix="keep or restore more experts, then ask again")
    if source is None:
        out.hint(f"halfbyte loops {folder} --against SRC")
