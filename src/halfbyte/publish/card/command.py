"""The command `halfbyte card`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.terminal.console import Output
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.usage import Command


@click.command("card", cls=Command)
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Of this checkpoint: organisation/name on the Hub, or a title.")
@click.option("--base-model", metavar="NAME", help="The source's name on the Hub, where no file states it.")
@click.option("--license", metavar="NAME", help="The licence, where the source's card states none.")
@click.option("--quantized-by", metavar="NAME", help="Who made this checkpoint.")
@click.option("--gpus", metavar="NxGPU", help="Serving commands for these, where `serve --write` wrote none.")
@click.option("--force", is_flag=True, help="Also replace a README.md that somebody wrote by hand.")
@click.pass_obj
def card_command(out: Output, out_folder: Path, *, force: bool, **said: str | None) -> None:
    """Write the model card of OUT, README.md, from the evidence that lies beside the weights.

    What was not measured is said, with the command that measures it. What is said here is remembered in the folder.
    """
    from halfbyte.publish.card.known import Said  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.publish.card.write import write_card  # noqa: PLC0415
    from halfbyte.publish.evidence import read_evidence  # noqa: PLC0415

    path = write_card(out_folder, Said(**said), force=force)
    evidence = read_evidence(out_folder)
    missing = {kind: {"why": one.why, "command": one.command} for kind, one in evidence.missing.items()}
    lines = [(f"not measured: {kind}", one.command) for kind, one in evidence.missing.items()]
    out.facts({"card": str(path), "found": sorted(evidence.found), "missing": missing}, [("card", str(path)), *lines])
    out.hint(f"halfbyte report {pasted(out_folder)}")
