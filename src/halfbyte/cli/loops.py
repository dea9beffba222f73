"""The `halfbyte loops` command."""

from __future__ import annotations

from typing import Any

from halfbyte.cli.command import command
from halfbyte.errors import CheckFailedError
from halfbyte.options.check import LoopsOptions
from halfbyte.ui.console import Output


@command("loops", LoopsOptions, example="halfbyte loops OUT --against SRC")
def loops_command(out: Output, options: LoopsOptions) -> None:
    """Generate open-ended texts with OUT and count those that loop. Exit code 1 if too many.

    For models that fit into memory in BF16. Answers each prompt greedily and at temperature 0.7. Writes
    OUT/halfbyte/loops.json if halfbyte wrote OUT.
    """
    folder = options.out_folder
    with out.activity(f"reading {folder}") as activity:
        from halfbyte.degeneracy.loop_test import Judged, judge, keep_judged, loop_rate, open_prompts

        prompts = open_prompts(options.prompts)
        how: dict[str, Any] = {
            "prompts": prompts, "tokens": options.tokens, "seed": options.seed, "activity": activity
        }  # fmt: skip
        rate = loop_rate(folder, **how)
        reference = None if options.against is None else loop_rate(options.against, **how)
    verdict = judge(rate, reference)
    lines = [
        (
            "texts",
            f"{rate.texts}: {len(prompts)} prompts, greedy and at temperature 0.7, up to {options.tokens} tokens",
        ),
        ("short", f"{rate.short} end after a few words"),
        ("unfinished", f"{rate.unfinished} without looping"),
        *(("looping", example) for example in rate.examples),
    ]
    judged = Judged(rate, reference, verdict)
    out.facts(judged.record(options.tokens).as_json(), lines)
    out.verdicts([(verdict.level, verdict.sentence)])
    keep_judged(folder, judged, options.tokens)
    if verdict.flagged:
        raise CheckFailedError(verdict.sentence, where=str(folder), fix="keep or restore more experts, then test again")
    if options.against is None:
        out.hint(f"halfbyte loops {folder} --against SRC")
