"""The command `halfbyte prune`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from halfbyte.console import Output
from halfbyte.decisions import PruneMethod, PruneSelect
from halfbyte.usage import Command

_PATH = click.Path(path_type=Path)
_METHODS, _SELECTS = click.Choice(get_args(PruneMethod)), click.Choice(get_args(PruneSelect))


@click.command("prune", cls=Command)
@click.argument("source", metavar="SRC", type=_PATH)
@click.argument("out_folder", metavar="[OUT]", required=False, type=_PATH)
@click.option("--keep", type=click.IntRange(1), help="How many routed experts stay in each layer.")
@click.option("--drop", metavar="SHARE", help="Instead of --keep: the share that goes, as in 25%.")
@click.option("--stats", type=_PATH, help="Statistics of `halfbyte calibrate`, measured on SRC.")
@click.option("--data", multiple=True, metavar="DOMAIN=FILE[:COLUMNS]",
              help="Instead of --stats: measure on these texts while pruning.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1), help="How many samples of --data.  [default: 1026]")
@click.option("--length", type=click.IntRange(2), help="Tokens in a row of --data.  [default: 2048]")
@click.option("--plan", "plan_file", metavar="FILE", type=_PATH,
              help="Instead of all these: a prune-plan.json, edited perhaps, or a published keep list.")  # fmt: skip
@click.option("--restore", metavar="N", type=click.IntRange(1),
              help="With --plan: N experts more in each layer, the best that were dropped.")  # fmt: skip
@click.option("--method", "--criterion", "method", type=_METHODS, help="What experts are judged by.  [default: reap]")
@click.option("--select", type=_SELECTS, help="One score of all domains, or the least loss for any.  [default: mean]")
@click.option("--blend", metavar="DOMAIN=WEIGHT,...", help="How much a token of each domain counts.")
@click.option("--protect/--no-protect", default=None, help="Whether super experts always stay.  [default: protect]")
@click.option(
    "--min-tokens", type=click.IntRange(0), help="Below it an expert was not observed, and stays.  [default: 1]"
)
@click.option("-o", "--plan-only", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write only the plan, as --plan reads it.")  # fmt: skip
@click.option("--layers", type=click.IntRange(1), help="Only the first layers: a small checkpoint that loads.")
@click.option(
    "--shards", default="layers", show_default=True, metavar="SIZE", help="Whole layers, or a size as in 5GB."
)
@click.option("--threads", type=click.IntRange(1), help="Threads that read and write.  [default: cores + 2]")
@click.option("--verify/--no-verify", default=True, show_default=True,
              help="First compare the source's shards with their known SHA-256.")  # fmt: skip
@click.pass_obj
def prune_command(out: Output, source: Path, out_folder: Path | None, **choice: Any) -> None:
    """Drop routed experts of SRC; what stays in OUT is byte for byte as it is stored, whatever its format.

    Run the same command again to resume. OUT/halfbyte has the plan and the statistics.
    """
    from halfbyte import show  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.pipeline import quantize  # noqa: PLC0415
    from halfbyte.prune import asked, decide  # noqa: PLC0415
    from halfbyte.prune.plan_file import write_prune_plan  # noqa: PLC0415

    asked.refuse_contradictions(choice, out_folder)
    checkpoint, model = decide.open_model(source)
    plan = asked.asked_plan(choice, checkpoint, model) if choice["plan_file"] else None
    recipe = asked.recipe_of_plan(plan, choice["shards"]) if plan else asked.asked_recipe(choice)
    if plan is not None and decide.is_of_another(plan, checkpoint):
        out.note("the plan was made on other weights: that is right only where these are the same model, stored anew")
    if out_folder is None:
        made, chosen = decide.decided(checkpoint, model, recipe, choice["stats"], plan, choice["layers"])
        write_prune_plan(choice["plan_only"], chosen)
        show.prune_plan(out, chosen, made, choice["plan_only"])
        out.hint(f"halfbyte prune {source} OUT --plan {choice['plan_only']}")
        return
    with out.progress() as bar:
        result = quantize(
            source,
            out_folder,
            recipe,
            layers=choice["layers"],
            stats=choice["stats"],
            prune_plan=plan,
            threads=choice["threads"],
            verify_source=choice["verify"],
            progress=show.steps(bar),
        )
    show.result(out, result, sum(checkpoint.shards.values()))
    out.hint(f"halfbyte audit {out_folder} --against {source}")
