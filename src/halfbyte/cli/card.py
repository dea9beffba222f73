"""The `halfbyte card` command."""

from __future__ import annotations

from dataclasses import fields

from halfbyte.cli.command import command
from halfbyte.options.publish import CardOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@command("card", CardOptions, example="halfbyte card OUT --name my-org/Kimi-K2.6-NVFP4 --quantized-by my-org")
def card_command(out: Output, options: CardOptions) -> None:
    """Write the model card, OUT/README.md, from the evidence in OUT.

    The card lists missing measurements, and this command prints how to run them. OUT remembers the options.
    """
    from halfbyte.cli.hash_progress import hash_output
    from halfbyte.evidence.folder import read_evidence, to_measure
    from halfbyte.publish.card.facts import CardOverrides
    from halfbyte.publish.card.source_card import read_card, unstated
    from halfbyte.publish.card.write import write_card
    from halfbyte.publish.hub.hub import check_name

    out_folder = options.out_folder
    if options.repo is not None:
        check_name(options.repo, "--repo")
    hash_output(out, out_folder)
    said = CardOverrides(**{field.name: getattr(options, field.name) for field in fields(CardOverrides)})
    path = write_card(out_folder, said, force=options.force)
    evidence = read_evidence(out_folder)
    unmeasured = to_measure(evidence)
    missing = {kind: {"why": step.why, "command": step.command} for kind, step in unmeasured.items()}
    lines = [(f"not measured: {kind}", step.command) for kind, step in unmeasured.items()]
    out.facts(
        {"card": str(path), "present": sorted(evidence.records), "missing": missing}, [("card", str(path)), *lines]
    )
    for field, option in unstated(read_card(path)[0]):
        out.note(f"the card does not state the {field}: halfbyte card {pasted(out_folder)} {option}")
    out.hint(f"halfbyte report {pasted(out_folder)}")
