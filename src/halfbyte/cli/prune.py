"""The `halfbyte prune` command, with deferred imports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from halfbyte.checkpoint.remote.address import is_remote
from halfbyte.cli.ray_option import ray_option
from halfbyte.cli.remote_options import cache_options, chosen_push, chosen_source, push_options
from halfbyte.cli.typed_command import typed_command
from halfbyte.cli.usage import Command
from halfbyte.errors import CheckFailedError, InterruptedRunError
from halfbyte.recipe.decisions import PruneMethod, PruneSelect
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted

if TYPE_CHECKING:
    from halfbyte.checkpoint.folder import Checkpoint
    from halfbyte.degeneracy.loop_test import LoopTest
    from halfbyte.engine.pipeline import Result
    from halfbyte.plan.prune_plan import PrunePlan

_PATH = click.Path(path_type=Path)
_FORMS = click.Choice(["by_layer", "counted", "in_order", "dropped"])
_METHODS, _SELECTS = click.Choice(get_args(PruneMethod)), click.Choice(get_args(PruneSelect))


@click.command(
    "prune",
    cls=Command,
    example="halfbyte prune Kimi-K2.6 OUT --keep 192 --data code=code.jsonl --data chat=chat.jsonl",
)
@click.argument("source", metavar="SRC")
@click.argument("out_folder", metavar="[OUT]", required=False, type=_PATH)
@click.option("--keep", type=click.IntRange(1), help="Routed experts to keep in each layer.")
@click.option("--drop", metavar="SHARE", help="Instead of --keep: the share of experts to drop, e.g. 25%.")
@click.option("--spread", is_flag=True, default=None,
              help="Same total, more experts where they help most. Stock vLLM and SGLang cannot load it.")  # fmt: skip
@click.option("--stats", type=_PATH, help="Statistics from `halfbyte calibrate`, measured on SRC.")
@click.option("--data", multiple=True, metavar="DOMAIN=FILE[:COLUMNS]",
              help="Instead of --stats: measure on these texts while pruning.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1), help="Number of samples from --data.  [default: 1026]")
@click.option("--length", type=click.IntRange(2), help="Tokens per row of --data.  [default: 2048]")
@click.option("--plan", "plan_file", metavar="FILE", type=_PATH,
              help="Use a prune-plan.json, edited or not, or a keep list. --stats adds its coverage.")  # fmt: skip
@click.option("--restore", metavar="N", type=click.IntRange(1),
              help="With --plan: restore the N best dropped experts of each layer.")  # fmt: skip
@click.option("--method", "--criterion", "method", type=_METHODS, help="Scoring criterion.  [default: reap]")
@click.option(
    "--select", type=_SELECTS, help="Mean score over domains, or the best worst-case domain.  [default: mean]"
)
@click.option("--blend", metavar="DOMAIN=WEIGHT,...", help="Weight of a token of each domain.")
@click.option("--protect/--no-protect", default=None, help="Always keep super experts.  [default: protect]")
@click.option(
    "--min-tokens", type=click.IntRange(0), help="Keep experts that saw fewer tokens than this.  [default: 1]"
)
@click.option("-o", "--plan-only", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write only the plan, for --plan.")  # fmt: skip
@click.option("--keep-list", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the kept experts as a bare list, with or without OUT.")  # fmt: skip
@click.option("--form", type=_FORMS, help="Format of --keep-list.  [default: by_layer]")
@click.option("--loops", "prompts", metavar="N", type=click.IntRange(1, 64),
              help="Test OUT and SRC for loops on N open prompts.  [default: 16 if that takes seconds]")  # fmt: skip
@click.option("--no-loops", is_flag=True, help="Skip the loop test.")
@click.option("--layers", type=click.IntRange(1), help="Use only the first N layers, for a small checkpoint.")
@click.option(
    "--shards", default="layers", show_default=True, metavar="SIZE", help="One shard per layer, or a size, e.g. 5GB."
)
@ray_option
@click.option("--threads", type=click.IntRange(1), help="Threads for reading and writing.  [default: cores + 2]")
@click.option("--verify/--no-verify", default=True, show_default=True,
              help="First compare the source's shards with their known SHA-256.")  # fmt: skip
@cache_options
@push_options
@click.pass_obj
def prune_command(out: Output, source: str, out_folder: Path | None, **choice: Any) -> None:
    """Drop routed experts of SRC and keep all other tensors.

    Kept tensors are copied byte for byte, in any format. Run the same command again to resume. OUT/halfbyte contains
    the plan and the statistics. At the end, small models generate texts. Exit code 1 if more of OUT's texts loop or
    break off than of SRC's. SRC is a folder, or an address as in `quantize`.
    """
    from halfbyte.checkpoint.output_folder import FOLDER
    from halfbyte.cli import pipeline_output as show
    from halfbyte.engine.pipeline import quantize
    from halfbyte.machine.resources import refuse_few_addresses
    from halfbyte.prune import decide, keep_list, options

    refuse_few_addresses(0, choice["threads"], measures=False)  # reading the source uses threads too
    options.refuse_contradictions(choice, out_folder)
    opened = chosen_source(source, out_folder / FOLDER if out_folder else None, choice)
    keep_list.refuse_to_replace(choice, opened if isinstance(opened, Path) else opened.root)
    checkpoint, model = decide.open_model(opened)
    plan, recipe = options.plan_and_recipe(choice, checkpoint, model, out.note)
    if out_folder is None:
        planned, chosen = decide.decided(checkpoint, model, recipe, choice["stats"], plan, choice["layers"])
        files = _write_lists(choice, chosen)
        show.prune_plan(out, chosen, planned, files)
        out.hint(f"halfbyte prune {pasted(source)} OUT --plan {pasted(next(iter(files.values())))}")
        return
    with out.progress("reading the source's headers") as bar:
        result = quantize(
            opened,
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
            begins=bar.doing,
            command=typed_command({"source": "SRC", "out_folder": "OUT"}),
        )
    assert result.pruned is not None
    _write_lists(choice, result.pruned)
    before = sum(checkpoint.shards.values())
    loops = None if choice["no_loops"] else _loop_test(out, opened, result, before, choice["prompts"])
    show.result(out, result, before, loops)
    if loops is not None and loops.flagged:
        dropped = result.pruned.experts - max(map(len, result.pruned.kept().values()))
        restore = f"--plan {pasted(out_folder / FOLDER / 'prune-plan.json')} --restore {max(1, dropped // 2)}"
        fix = f"restore experts: halfbyte prune {pasted(source)} OUT2 {restore}"
        raise CheckFailedError(f"the pruned model {loops.sentence}", where=str(out_folder), fix=fix)
    out.hint(f"halfbyte audit {pasted(out_folder)}" + ("" if is_remote(source) else f" --against {pasted(source)}"))


def _write_lists(choice: Mapping[str, Any], plan: PrunePlan) -> dict[str, Path]:
    """Write the requested files: the plan and the keep list."""
    from halfbyte.plan.prune_plan import write_prune_plan
    from halfbyte.prune.keep_list import write_keep_list

    files: dict[str, Path] = {}
    if choice["plan_only"] is not None:
        write_prune_plan(choice["plan_only"], plan)
        files["plan"] = choice["plan_only"]
    if choice["keep_list"] is not None:
        write_keep_list(choice["keep_list"], plan, choice["form"] or "by_layer")
        files["keep list"] = choice["keep_list"]
    return files


def _loop_test(out: Output, source: Path | Checkpoint, result: Result, before: int, prompts: int | None) -> LoopTest:
    """Run the loop test on the finished checkpoint. Interrupting it leaves the checkpoint complete."""
    from halfbyte.cli import pipeline_output as show
    from halfbyte.degeneracy.loop_test import loop_test

    folder = source if isinstance(source, Path) else None  # a remote source cannot generate text
    models = "both checkpoints" if folder is not None else "the checkpoint"
    out.note(f"generating texts with {models} to test for loops; Ctrl-C skips the test and keeps the checkpoint")
    try:
        with out.activity("generating texts") as activity:
            return loop_test(result.out, folder, prompts, activity)
    except KeyboardInterrupt:
        show.result(out, result, before)
        what = "loop test interrupted; the checkpoint is complete"
        fix = f"halfbyte loops {pasted(result.out)}" + (f" --against {pasted(folder)}" if folder is not None else "")
        raise InterruptedRunError(what, where=str(result.out), fix=fix) from None
