"""The command `halfbyte calibrate`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from halfbyte.recipe.options import chosen_recipe, recipe_options
from halfbyte.terminal.console import Output
from halfbyte.terminal.device_options import chosen_device_memory, device_options, refuse_threads_beside_device
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.remote_options import cache_options, chosen_source
from halfbyte.terminal.usage import Command


@click.command("calibrate", cls=Command)
@click.argument("source")
@recipe_options
@click.option("-o", "--out", "folder", metavar="STATS", required=True, type=click.Path(path_type=Path),
              help="The folder for the statistics.")  # fmt: skip
@device_options
@click.option("--threads", type=click.IntRange(1), help="Threads that compute.  [default: cores]")
@click.option("--verify/--no-verify", default=True, show_default=True,
              help="Compare what is fetched from an address with its known checksums.")  # fmt: skip
@cache_options
@click.pass_obj
def calibrate_command(out: Output, source: str, folder: Path, threads: int | None, **choice: Any) -> None:
    """Measure the activations of SOURCE on the recipe's data, a layer in memory at a time.

    Many recipes can use the statistics (`quantize --stats STATS`). Run the same command again to resume. SOURCE is a
    folder, or an address as in `quantize`.
    """
    from halfbyte import show  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.measuring import calibrate  # noqa: PLC0415

    refuse_threads_beside_device(threads, choice["device"])
    recipe = chosen_recipe(choice)
    with out.progress() as bar:
        result = calibrate(
            chosen_source(source, folder, choice),
            folder,
            recipe,
            layers=choice["layers"],
            threads=threads,
            device=choice["device"],
            device_memory=chosen_device_memory(choice),
            progress=show.steps(bar),
        )
    show.calibration(out, result)
    few = f" --layers {choice['layers']}" if choice["layers"] else ""
    out.hint(f"halfbyte quantize {pasted(source)} OUT -r {choice['recipe']}{few} --stats {pasted(folder)}")
