"""The `halfbyte card` command, with deferred imports."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.cli.named_values import GPUS
from halfbyte.cli.usage import Command
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@click.command("card", cls=Command, example="halfbyte card OUT --name my-org/Kimi-K2.6-NVFP4 --quantized-by my-org")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--repo", metavar="ORG/NAME", help="Target repository on the Hub.")
@click.option("--name", metavar="NAME", help="Title of the card.  [default: NAME of --repo, or SOURCE-FORMAT]")
@click.option("--base-model", metavar="NAME", help="The source's name on the Hub, if no file states it.")
@click.option("--license", metavar="NAME", help="License, if the source's card states none.")
@click.option("--quantized-by", metavar="NAME", help="Publisher of this checkpoint.")
@click.option("--gpus", metavar="NxGPU", type=GPUS, help="GPUs of the serving commands, if `serve --write` wrote none.")
@click.option("--force", is_flag=True, help="Also replace a hand-written README.md.")
@click.pass_obj
def card_command(out: Output, out_folder: Path, *, force: bool, **options: str | None) -> None:
    """Write the model card, OUT/README.md, from the evidence in OUT.

    The card lists missing measurements, and this command prints how to run them. OUT remembers the options.
    """
    from halfbyte.cli.hash_progress import hash_output
    from halfbyte.evidence.folder import read_evidence, to_measure
    from halfbyte.publish.card.facts import Said
    from halfbyte.publish.card.source_card import read_card, unstated
    from halfbyte.publish.card.write import write_card
    from halfbyte.publish.hub.hub import check_name

    if options["repo"] is not None:
        check_name(options["repo"], "--repo")

    hash_output(out, out_folder)
    path = write_card(out_folder, Said(**options), force=force)
    evidence = read_evidence(out_folder)
    unmeasured = to_measure(evidence)
    missing = {kind: {"why": step.why, "command": step.command} for kind, step in unmeasured.items()}
    lines = [(f"not measured: {kind}", step.command) for kind, step in unmeasured.items()]
    out.facts({"card": str(path), "found": sorted(evidence.found), "missing": missing}, [("card", str(path)), *lines])
    for field, option in unstated(read_card(path)[0]):
        out.note(f"the card does not state the {field}: halfbyte card {pasted(out_folder)} {option}")
    out.hint(f"halfbyte report {pasted(out_folder)}")
