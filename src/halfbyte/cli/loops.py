"""The `halfbyte loops` command, with deferred imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from halfbyte.cli.usage import Command
from halfbyte.errors import CheckFailedError
from halfbyte.ui.console import Output

_FOLDER = click.Path(path_type=Path)


@click.command("loops", cls=Command, example="halfbyte loops OUT --against SRC")
@click.argument("folder", metavar="OUT", type=_FOLDER)
@click.option("--against", "source", metavar="SRC", type=_FOLDER, help="Also test this checkpoint, and compare.")
@click.option("--prompts", "count", type=click.IntRange(1), help="Number of prompts, at most 64.  [default: all]")
@click.option("--tokens", type=click.IntRange(1), default=512, show_default=True, help="Maximum new tokens per text.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the texts at temperature 0.7.")
@click.pass_obj
def loops_command(out: Output, folder: Path, source: Path | None, count: int | None, tokens: int, seed: int) -> None:
    """Generate open-ended texts with OUT and count those that loop. Exit code 1 if too many.

    For models that fit into memory in BF16. Answers each prompt greedily and at temperature 0.7. Writes
    OUT/halfbyte/loops.json if halfbyte wrote OUT.
    """
    with out.activity(f"reading {folder}") as activity:
        from halfbyte.degeneracy.loop_test import Judged, judge, keep_judged, loop_rate, open_prompts

        prompts = open_prompts(count)
        options: dict[str, Any] = {"prompts": prompts, "tokens": tokens, "seed": seed, "activity": activity}
        rate = loop_rate(folder, **options)
        reference = None if source is None else loop_rate(source, **options)
    verdict = judge(rate, reference)
    lines = [
        ("texts", f"{rate.texts}: {len(prompts)} prompts, greedy and at temperature 0.7, up to {tokens} tokens"),
        ("short", f"{rate.short} end after a few words"),
        ("unfinished", f"{rate.unfinished} without looping"),
        *(("looping", example) for example in rate.examples),
    ]
    judged = Judged(rate, reference, verdict)
    out.facts(judged.record(tokens).as_json(), lines)
    out.verdicts([(verdict.level, verdict.sentence)])
    keep_judged(folder, judged, tokens)
    if verdict.flagged:
        raise CheckFailedError(verdict.sentence, where=str(folder), fix="keep or restore more experts, then test again")
    if source is None:
        out.hint(f"halfbyte loops {folder} --against SRC")
