"""The `halfbyte calibrate` command, with deferred imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from halfbyte.cli.device_options import chosen_device_memory, device_options
from halfbyte.cli.recipe_options import chosen_recipe, recipe_options
from halfbyte.cli.remote_options import cache_options, chosen_source
from halfbyte.cli.usage import Command
from halfbyte.machine.devices import refuse_threads_beside_device
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@click.command("calibrate", cls=Command, example="halfbyte calibrate Kimi-K2.6 -r kimi-k2.7-code-nvfp4-decart -o STATS")
@click.argument("source")
@recipe_options
@click.option("-o", "--out", "folder", metavar="STATS", required=True, type=click.Path(path_type=Path),
              help="Folder for the statistics.")  # fmt: skip
@device_options
@click.option("--threads", type=click.IntRange(1), help="Compute threads.  [default: cores]")
@click.option("--verify/--no-verify", default=True, show_default=True,
              help="Compare downloaded files with their known checksums.")  # fmt: skip
@cache_options
@click.pass_obj
def calibrate_command(out: Output, source: str, folder: Path, threads: int | None, **choice: Any) -> None:
    """Measure activation statistics of SOURCE on the recipe's data.

    Keeps one layer in memory at a time. Many recipes can use the statistics (`quantize --stats STATS`). Run the same
    command again to resume. SOURCE is a folder, or an address as in `quantize`.
    """
    refuse_threads_beside_device(threads, choice["device"])
    recipe = chosen_recipe(choice)
    with out.progress("reading the source's headers and the calibration data") as bar:
        from halfbyte.cli import pipeline_output as show
        from halfbyte.engine.calibrate import calibrate

        result = calibrate(
            chosen_source(source, folder, choice),
            folder,
            recipe,
            layers=choice["layers"],
            threads=threads,
            device=choice["device"],
            device_memory=chosen_device_memory(choice),
            progress=show.steps(bar),
            begins=bar.doing,
        )
    show.calibration(out, result)
    layers = f" --layers {choice['layers']}" if choice["layers"] else ""
    out.hint(f"halfbyte quantize {pasted(source)} OUT -r {choice['recipe']}{layers} --stats {pasted(folder)}")
