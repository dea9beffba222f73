"""The `halfbyte prune` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.checkpoint.remote.address import is_remote
from halfbyte.cli.command import command, typed_command
from halfbyte.cli.load_options import chosen_push, chosen_source
from halfbyte.errors import CheckFailedError, InterruptedRunError
from halfbyte.options.convert import PruneOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted

if TYPE_CHECKING:
    from halfbyte.checkpoint.folder import Checkpoint
    from halfbyte.degeneracy.loop_test import LoopTest
    from halfbyte.engine.pipeline import Result
    from halfbyte.plan.prune_plan import PrunePlan


@command(
    "prune",
    PruneOptions,
    example="halfbyte prune Kimi-K2.6 OUT --keep 192 --data code=code.jsonl --data chat=chat.jsonl",
)
def prune_command(out: Output, options: PruneOptions) -> None:
    """Drop routed experts of SRC and keep all other tensors.

    Kept tensors are copied byte for byte, in any format. Run the same command again to resume. OUT/halfbyte contains
    the plan and the statistics. At the end, small models generate texts. Exit code 1 if more of OUT's texts loop or
    break off than of SRC's. SRC is a folder, or an address as in `quantize`.
    """
    from halfbyte.checkpoint.output_folder import FOLDER
    from halfbyte.cli import pipeline_output as show
    from halfbyte.engine.pipeline import quantize
    from halfbyte.machine.resources import refuse_few_addresses
    from halfbyte.prune import keep_list, plan_source
    from halfbyte.prune.options import plan_and_recipe, refuse_contradictions

    source, out_folder = options.source, options.out_folder
    refuse_few_addresses(0, options.threads, measures=False)  # reading the source uses threads too
    refuse_contradictions(options)
    opened = chosen_source(source, out_folder / FOLDER if out_folder else None, options.cache, verify=options.verify)
    keep_list.refuse_to_replace(options, opened if isinstance(opened, Path) else opened.root)
    checkpoint, model = plan_source.open_model(opened)
    plan, recipe = plan_and_recipe(options, checkpoint, model, out.note)
    if out_folder is None:
        planned, chosen = plan_source.decided(checkpoint, model, recipe, options.stats, plan, options.layers)
        files = _write_lists(options, chosen)
        show.prune_plan(out, chosen, planned, files)
        out.hint(f"halfbyte prune {pasted(source)} OUT --plan {pasted(next(iter(files.values())))}")
        return
    with out.progress("reading the source's headers") as bar:
        result = quantize(
            opened,
            out_folder,
            recipe,
            layers=options.layers,
            stats=options.stats,
            prune_plan=plan,
            threads=options.threads,
            ray=options.ray,
            verify_source=options.verify,
            push=chosen_push(out_folder, options.upload),
            progress=show.steps(bar),
            begins=bar.doing,
            command=typed_command({"source": "SRC", "out_folder": "OUT"}),
        )
    assert result.pruned is not None
    _write_lists(options, result.pruned)
    before = sum(checkpoint.shards.values())
    loops = None if options.no_loops else _loop_test(out, opened, result, before, options.loops)
    show.result(out, result, before, loops)
    if loops is not None and loops.flagged:
        dropped = result.pruned.experts - max(map(len, result.pruned.kept().values()))
        restore = f"--plan {pasted(out_folder / FOLDER / 'prune-plan.json')} --restore {max(1, dropped // 2)}"
        fix = f"restore experts: halfbyte prune {pasted(source)} OUT2 {restore}"
        raise CheckFailedError(f"the pruned model {loops.sentence}", where=str(out_folder), fix=fix)
    out.hint(f"halfbyte audit {pasted(out_folder)}" + ("" if is_remote(source) else f" --against {pasted(source)}"))


def _write_lists(options: PruneOptions, plan: PrunePlan) -> dict[str, Path]:
    """Write the requested files: the plan and the keep list."""
    from halfbyte.plan.prune_plan import write_prune_plan
    from halfbyte.prune.keep_list import write_keep_list

    files: dict[str, Path] = {}
    if options.plan_only is not None:
        write_prune_plan(options.plan_only, plan)
        files["plan"] = options.plan_only
    if options.keep_list is not None:
        write_keep_list(options.keep_list, plan, options.form or "by_layer")
        files["keep list"] = options.keep_list
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
