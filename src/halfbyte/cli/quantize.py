"""The `halfbyte quantize` command."""

from __future__ import annotations

from halfbyte.checkpoint.remote.address import is_remote
from halfbyte.cli.command import command, typed_command
from halfbyte.cli.load_options import (
    chosen_device_memory,
    chosen_plan,
    chosen_push,
    chosen_recipe,
    chosen_source,
    refuse_data_beside_statistics,
)
from halfbyte.options.convert import QuantizeOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@command("quantize", QuantizeOptions, example="halfbyte quantize Kimi-K2.6 OUT -r kimi-k2.6-nvfp4-nvidia")
def quantize_command(out: Output, options: QuantizeOptions) -> None:
    """Convert the checkpoint SOURCE to OUT with a recipe or a plan. Run the same command again to resume.

    SOURCE is a folder, or an address whose shards are downloaded as needed: hf://organization/name@revision,
    s3://bucket/folder.
    """
    from halfbyte.checkpoint.output_folder import FOLDER

    source, out_folder, changes = options.source, options.out_folder, options.changes
    refuse_data_beside_statistics(options.stats, changes)
    with out.progress("reading the headers of the source") as bar:
        from halfbyte.cli import pipeline_output as show
        from halfbyte.engine.pipeline import quantize

        planned = chosen_plan(options.recipe, options.plan, changes)
        recipe = planned.recipe if planned else chosen_recipe(options.recipe or "", changes)
        result = quantize(
            chosen_source(source, out_folder / FOLDER, options.cache, verify=options.verify),
            out_folder,
            recipe,
            layers=changes.layers or (planned.layers if planned else None),
            planned=planned,
            stats=options.stats,
            threads=options.threads,
            device=options.placement.device,
            device_memory=chosen_device_memory(options.placement),
            ray=options.ray,
            verify_source=options.verify,
            push=chosen_push(out_folder, options.upload),
            progress=show.steps(bar),
            begins=bar.doing,
            command=typed_command({"source": "SRC", "out_folder": "OUT"}),
        )
    show.result(out, result)
    out.hint(f"halfbyte audit {pasted(out_folder)}" + ("" if is_remote(source) else f" --against {pasted(source)}"))
