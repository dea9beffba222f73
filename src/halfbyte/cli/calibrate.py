"""The `halfbyte calibrate` command."""

from __future__ import annotations

from halfbyte.cli.command import command
from halfbyte.cli.load_options import chosen_device_memory, chosen_recipe, chosen_source
from halfbyte.machine.device_option import refuse_threads_beside_device
from halfbyte.options.convert import CalibrateOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@command("calibrate", CalibrateOptions, example="halfbyte calibrate Kimi-K2.6 -r kimi-k2.7-code-nvfp4-decart -o STATS")
def calibrate_command(out: Output, options: CalibrateOptions) -> None:
    """Measure activation statistics of SOURCE on the recipe's data.

    Keeps one layer in memory at a time. Many recipes can use the statistics (`quantize --stats STATS`). Run the same
    command again to resume. SOURCE is a folder, or an address as in `quantize`.
    """
    placement, folder = options.placement, options.folder
    refuse_threads_beside_device(options.threads, placement.device)
    recipe = chosen_recipe(options.recipe, options.changes)
    with out.progress("reading the source's headers and the calibration data") as bar:
        from halfbyte.cli import pipeline_output as show
        from halfbyte.engine.calibrate import calibrate

        result = calibrate(
            chosen_source(options.source, folder, options.cache, verify=options.verify),
            folder,
            recipe,
            layers=options.changes.layers,
            threads=options.threads,
            device=placement.device,
            device_memory=chosen_device_memory(placement),
            progress=show.steps(bar),
            begins=bar.doing,
        )
    show.calibration(out, result)
    layers = f" --layers {options.changes.layers}" if options.changes.layers else ""
    out.hint(f"halfbyte quantize {pasted(options.source)} OUT -r {options.recipe}{layers} --stats {pasted(folder)}")
