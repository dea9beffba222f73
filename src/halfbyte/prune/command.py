"""The command `halfbyte prune`; what it needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from halfbyte.distributed.option import ray_option
from halfbyte.errors import CheckFailedError, InterruptedRunError
from halfbyte.recipe.decisions import PruneMethod, PruneSelect, Recipe
from halfbyte.source.remote.address import is_remote
from halfbyte.terminal.console import Output
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.remote_options import cache_options, chosen_push, chosen_source, push_options
from halfbyte.terminal.usage import Command

if TYPE_CHECKING:
    from halfbyte.models.model import Model
    from halfbyte.pipeline import Result
    from halfbyte.prune.plan_file import PrunePlan
    from halfbyte.source.checkpoint import Checkpoint
    from halfbyte.validate.after_pruning import LoopTest

_PATH = click.Path(path_type=Path)
_FORMS = click.Choice(["by_layer", "counted", "in_order", "dropped"])
_METHODS, _SELECTS = click.Choice(get_args(PruneMethod)), click.Choice(get_args(PruneSelect))


@click.command("prune", cls=Command)
@click.argument("source", metavar="SRC")
@click.argument("out_folder", metavar="[OUT]", required=False, type=_PATH)
@click.option("--keep", type=click.IntRange(1), help="How many routed experts stay in each layer.")
@click.option("--drop", metavar="SHARE", help="Instead of --keep: the share that goes, as in 25%.")
@click.option("--spread", is_flag=True, default=None,
              help="As many in all, more where it helps most. Stock vLLM and SGLang cannot load that.")  # fmt: skip
@click.option("--stats", type=_PATH, help="Statistics of `halfbyte calibrate`, measured on SRC.")
@click.option("--data", multiple=True, metavar="DOMAIN=FILE[:COLUMNS]",
              help="Instead of --stats: measure on these texts while pruning.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1), help="How many samples of --data.  [default: 1026]")
@click.option("--length", type=click.IntRange(2), help="Tokens in a row of --data.  [default: 2048]")
@click.option("--plan", "plan_file", metavar="FILE", type=_PATH,
              help="Instead: a prune-plan.json, edited perhaps, or a keep list. --stats: what it covers.")  # fmt: skip
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
@click.option("--keep-list", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write who stays as a bare list, as others publish it; with OUT or without.")  # fmt: skip
@click.option("--form", type=_FORMS, help="Of --keep-list.  [default: by_layer]")
@click.option("--loops", "prompts", metavar="N", type=click.IntRange(1, 64),
              help="Then ask OUT and SRC N open-ended questions.  [default: 16 where that takes seconds]")  # fmt: skip
@click.option("--no-loops", is_flag=True, help="Do not ask OUT anything.")
@click.option("--layers", type=click.IntRange(1), help="Only the first layers: a small checkpoint that loads.")
@click.option(
    "--shards", default="layers", show_default=True, metavar="SIZE", help="Whole layers, or a size as in 5GB."
)
@ray_option
@click.option("--threads", type=click.IntRange(1), help="Threads that read and write.  [default: cores + 2]")
@click.option("--verify/--no-verify", default=True, show_default=True,
              help="First compare the source's shards with their known SHA-256.")  # fmt: skip
@cache_options
@push_options
@click.pass_obj
def prune_command(out: Output, source: str, out_folder: Path | None, **choice: Any) -> None:
    """Drop routed experts of SRC; what stays in OUT is byte for byte as it is stored, whatever its format.

    Run the same command again to resume. OUT/halfbyte has the plan and the statistics. At the end a small model is
    asked for texts; if more of them loop or break off than of SRC's, OUT stays and the exit code is 1. SRC is a folder,
    or an address as in `quantize`.
    """
    from halfbyte import show  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.folders import FOLDER  # noqa: PLC0415
    from halfbyte.machine.address_space import refuse_few_addresses  # noqa: PLC0415
    from halfbyte.pipeline import quantize  # noqa: PLC0415
    from halfbyte.prune import asked, decide, list_files  # noqa: PLC0415

    refuse_few_addresses(0, choice["threads"], measures=False)  # reading a source has threads too
    asked.refuse_contradictions(choice, out_folder)
    given = chosen_source(source, out_folder / FOLDER if out_folder else None, choice)
    list_files.refuse_to_replace(choice, given if isinstance(given, Path) else given.root)
    checkpoint, model = decide.open_model(given)
    plan, recipe = _plan_and_recipe(out, choice, checkpoint, model)
    if out_folder is None:
        made, chosen = decide.decided(checkpoint, model, recipe, choice["stats"], plan, choice["layers"])
        files = _write_lists(choice, chosen)
        show.prune_plan(out, chosen, made, files)
        out.hint(f"halfbyte prune {pasted(source)} OUT --plan {pasted(next(iter(files.values())))}")
        return
    with out.progress() as bar:
        result = quantize(
            given,
            out_folder,
            recipe,
            layers=choice["layers"],
            stats=choice["stats"],
            prune_plan=plan,
            threads=choice["threads"],
            ray=choice["ray"],
            verify_source=choice["verify"],
            push=chosen_push(out_folder, choice),
            progress=show.steps(bar),
        )
    assert result.pruned is not None
    _write_lists(choice, result.pruned)
    before = sum(checkpoint.shards.values())
    loops = None if choice["no_loops"] else _loop_test(out, given, result, before, choice["prompts"])
    show.result(out, result, before, loops)
    if loops is not None and loops.flagged:
        gone = result.pruned.experts - max(map(len, result.pruned.kept().values()))
        again = f"--plan {pasted(out_folder / FOLDER / 'prune-plan.json')} --restore {max(1, gone // 2)}"
        fix = f"restore experts: halfbyte prune {pasted(source)} OUT2 {again}"
        raise CheckFailedError(f"the pruned model {loops.sentence}", where=str(out_folder), fix=fix)
    out.hint(f"halfbyte audit {pasted(out_folder)}" + ("" if is_remote(source) else f" --against {pasted(source)}"))


def _plan_and_recipe(
    out: Output, choice: Mapping[str, Any], checkpoint: Checkpoint, model: Model
) -> tuple[PrunePlan | None, Recipe]:
    """Return who stays, where --plan or --spread say so before the run, and the recipe of it all."""
    from halfbyte.prune import asked, decide  # noqa: PLC0415

    plan = None
    if choice["plan_file"]:
        plan = decide.applied_to(asked.asked_plan(choice, checkpoint, model), checkpoint)
    recipe = asked.recipe_of_plan(plan, choice["shards"]) if plan else asked.asked_recipe(choice)
    if plan is not None and choice["stats"] is not None:
        made = decide.undecided(checkpoint, model, recipe, choice["layers"])
        decide.refuse_other_source(plan, made)
        plan = decide.with_statistics(plan, made, choice["stats"])
    elif choice["spread"] and choice["stats"] is not None:  # which were asked for before
        made = decide.undecided(checkpoint, model, recipe, choice["layers"])
        plan, budgets = decide.spread_plan(made, choice["stats"])
        out.note(budgets.line())
        recipe = asked.recipe_of_plan(plan, choice["shards"])
    return plan, recipe


def _write_lists(choice: Mapping[str, Any], plan: PrunePlan) -> dict[str, Path]:
    """Write the plan and the bare list, those that are wanted."""
    from halfbyte.prune.keep_list import write_keep_list  # noqa: PLC0415
    from halfbyte.prune.plan_file import write_prune_plan  # noqa: PLC0415

    files: dict[str, Path] = {}
    if choice["plan_only"] is not None:
        write_prune_plan(choice["plan_only"], plan)
        files["plan"] = choice["plan_only"]
    if choice["keep_list"] is not None:
        write_keep_list(choice["keep_list"], plan, choice["form"] or "by_layer")
        files["keep list"] = choice["keep_list"]
    return files


def _loop_test(out: Output, source: Path | Checkpoint, result: Result, before: int, prompts: int | None) -> LoopTest:
    """Ask the finished checkpoint for texts. Who does not want to wait has it all the same."""
    from halfbyte import show  # noqa: PLC0415
    from halfbyte.validate.after_pruning import loop_test  # noqa: PLC0415

    folder = source if isinstance(source, Path) else None  # what is elsewhere cannot be asked
    asked = "both" if folder is not None else "it"
    out.note(f"asking {asked} for texts, to see whether they loop; Ctrl-C leaves the checkpoint as it is")
    try:
        return loop_test(result.out, folder, prompts)
    except KeyboardInterrupt:
        show.result(out, result, before)
        what = "the loop test was stopped; the checkpoint is whole, and nothing is left to clean up"
        fix = f"halfbyte loops {pasted(result.out)}" + (f" --against {pasted(folder)}" if folder is not None else "")
        raise InterruptedRunError(what, where=str(result.out), fix=fix) from None
