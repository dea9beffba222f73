"""Limitations section, derived from the evidence and from missing evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halfbyte.evidence.fields import (
    mapping,
    number,
    rows,
    whole,
    words,
)
from halfbyte.evidence.measured_files import FOLDER_NAME
from halfbyte.probe.coverage import coverage
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, code, inline, phrase
from halfbyte.publish.card.sections.calibration import calibrates
from halfbyte.publish.card.sections.reproduction import source_of_data

_CHAT = "chat"
_KINDS = {
    "audit": "whether the files match the plan", "compare": "divergence from the source model",
    "eval": "task accuracy", "probe": "serving behavior", "bench": "serving performance",
}  # fmt: skip


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the list of limitations."""
    return {"sentences": [*_data(card), *_quality(card), *_serving(card), *_missing(card)]}


def _data(card: CardFacts) -> Iterator[Markdown]:
    if calibrates(card):
        sets = Markdown(", ".join(source_of_data(card))) or None
        yield phrase("Scales were calibrated on {}. For other domains or languages, calibrate on matching data.", sets)
    elif card.plan:
        fixed = number(card.recipe, "quantize", "input_scale", "fixed")
        inputs = "" if fixed is None else f", and the input scales are fixed at {fixed:g}"
        yield Markdown(f"Not calibrated: the scales come from the weights alone{inputs}.")
    unseen = whole(card.get("coverage"), "unseen_experts")
    if unseen:
        yield phrase("Experts without calibration tokens: {}. Their activation scales are backstop values.", unseen)
    if card.pruned:
        yield Markdown("Experts were removed: capabilities that the calibration data does not exercise degrade first.")


def _quality(card: CardFacts) -> Iterator[Markdown]:
    evaluation = card.get("eval")
    tasks = rows(evaluation, "tasks")
    completions = [task for task in tasks if (format := words(task, "asked_as")) and not format.startswith(_CHAT)]
    if completions:
        names = ", ".join(str(task.get("task")) for task in completions)
        yield phrase("{}: evaluated as completions, without the chat template. Chat scores may differ.", names)
    limit = whole(evaluation, "arguments", "limit")
    if limit:
        yield phrase(
            "Only the first {} items of each task were evaluated: small differences are not detectable.", limit
        )
    if any(words(task, "label") == "INCONCLUSIVE" for task in tasks):
        yield Markdown("Inconclusive tasks neither show nor rule out a loss.")
    if evaluation is not None and tasks and not any(mapping(task, "reference") for task in tasks):
        yield Markdown("The source model was not evaluated on the same tasks: the scores do not show the loss.")
    if card.inspection.vision_parameters and not _vision(card):
        yield Markdown("Image input was not validated: only text was measured.")


def _vision(card: CardFacts) -> bool:
    probes = (row for row in rows(card.get("probe"), "probes") if row.get("name") == "vision")
    return any(row.get("verdict") == "passed" for row in probes)


def _serving(card: CardFacts) -> Iterator[Markdown]:
    for kind, what in (("eval", "evaluated"), ("probe", "probed"), ("bench", "benchmarked")):
        name = card.served_as(kind)
        here = {card.evidence.out.resolve().name, card.title, words(card.get(kind), FOLDER_NAME)}
        if name is not None and name not in here:
            text = "The {} server reported serving {}; it is not recorded whether that is this checkpoint."
            yield phrase(text, what, code(name))
    if card.emulated:
        yield Markdown(
            "The number format was emulated on hardware that does not support it. Native kernels may round "
            "differently, and measured speed is not representative."
        )
    yield from _not_probed(card)
    emulated = mapping(card.get("compare"), "emulated")
    if card.get("compare") is not None and not emulated and card.served.activations != "none":
        yield Markdown("The comparison with the source covers the weights only: activations were not quantized.")


def _not_probed(card: CardFacts) -> Iterator[Markdown]:
    """Name every probe that did not run, by reason."""
    covered = coverage(rows(card.get("probe"), "probes"))
    for skipped, why in (
        (covered.over_budget, "Probes omitted because they exceed the time budget"),
        (covered.unreachable, "Probes not run because the server stopped responding"),
        (covered.impossible, "Probes skipped for the reasons in the probe table"),
    ):
        if skipped:
            names = Markdown("; ".join(inline(row.get("title")) for row in skipped))
            yield phrase("{}: {}.", why, names)


def _missing(card: CardFacts) -> Iterator[Markdown]:
    for kind, what in _KINDS.items():
        if card.get(kind) is None:
            yield Markdown(f"Not measured: {what}{card.why_missing(kind)}")
