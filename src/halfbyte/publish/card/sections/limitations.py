"""Limitations section, derived from the evidence and from missing evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from halfbyte.evidence.audit import Audit
from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.comparison import Comparison
from halfbyte.evidence.coverage import Coverage
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.probes import Probes, coverage
from halfbyte.evidence.record import MeasuredRecord, Record
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, code, inline, phrase
from halfbyte.publish.card.sections.calibration import calibrates
from halfbyte.publish.card.sections.reproduction import source_of_data

_CHAT = "chat"
_KINDS: Mapping[type[Record], str] = {
    Audit: "whether the files match the plan", Comparison: "divergence from the source model",
    Evaluation: "task accuracy", Probes: "serving behavior", Benchmark: "serving performance",
}  # fmt: skip
_MEASURED: Mapping[type[MeasuredRecord], str] = {
    Evaluation: "evaluated", Probes: "probed", Benchmark: "benchmarked",
}  # fmt: skip


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the list of limitations."""
    return {"sentences": [*_data(card), *_quality(card), *_serving(card), *_missing(card)]}


def _data(card: CardFacts) -> Iterator[Markdown]:
    if calibrates(card):
        sets = Markdown(", ".join(source_of_data(card))) or None
        yield phrase("Scales were calibrated on {}. For other domains or languages, calibrate on matching data.", sets)
    elif card.plan:
        scale = card.quantize.input_scale if card.quantize else None
        fixed = scale.fixed if scale else None
        inputs = "" if fixed is None else f", and the input scales are fixed at {fixed:g}"
        yield Markdown(f"Not calibrated: the scales come from the weights alone{inputs}.")
    tokens = card.get(Coverage)
    if tokens and tokens.unseen_experts:
        text = "Experts without calibration tokens: {}. Their activation scales are backstop values."
        yield phrase(text, tokens.unseen_experts)
    if card.pruned:
        yield Markdown("Experts were removed: capabilities that the calibration data does not exercise degrade first.")


def _quality(card: CardFacts) -> Iterator[Markdown]:
    evaluation = card.get(Evaluation)
    tasks = evaluation.tasks if evaluation else ()
    completions = [task.task for task in tasks if not task.prompt_format.startswith(_CHAT)]
    if completions:
        names = ", ".join(completions)
        yield phrase("{}: evaluated as completions, without the chat template. Chat scores may differ.", names)
    limit = evaluation.arguments.limit if evaluation else None
    if limit:
        yield phrase(
            "Only the first {} items of each task were evaluated: small differences are not detectable.", limit
        )
    if any(task.label == "INCONCLUSIVE" for task in tasks):
        yield Markdown("Inconclusive tasks neither show nor rule out a loss.")
    if tasks and not any(task.reference for task in tasks):
        yield Markdown("The source model was not evaluated on the same tasks: the scores do not show the loss.")
    if card.inspection.vision_parameters and not _vision(card):
        yield Markdown("Image input was not validated: only text was measured.")


def _vision(card: CardFacts) -> bool:
    report = card.get(Probes)
    return report is not None and any(row.name == "vision" and row.verdict == "passed" for row in report.probes)


def _serving(card: CardFacts) -> Iterator[Markdown]:
    for kind, name in card.served_folders.items():
        record = card.get(kind)
        here = {card.evidence.out.resolve().name, card.title, record.measured_folder if record else None}
        if name not in here:
            text = "The {} server reported serving {}; it is not recorded whether that is this checkpoint."
            yield phrase(text, _MEASURED[kind], code(name))
    if card.emulated:
        yield Markdown(
            "The number format was emulated on hardware that does not support it. Native kernels may round "
            "differently, and measured speed is not representative."
        )
    yield from _not_probed(card)
    comparison = card.get(Comparison)
    if comparison is not None and not comparison.emulated and card.served.activations != "none":
        yield Markdown("The comparison with the source covers the weights only: activations were not quantized.")


def _not_probed(card: CardFacts) -> Iterator[Markdown]:
    """Name every probe that did not run, by reason."""
    report = card.get(Probes)
    covered = coverage(report.probes if report else ())
    for skipped, why in (
        (covered.over_budget, "Probes omitted because they exceed the time budget"),
        (covered.unreachable, "Probes not run because the server stopped responding"),
        (covered.impossible, "Probes skipped for the reasons in the probe table"),
    ):
        if skipped:
            names = Markdown("; ".join(inline(row.title) for row in skipped))
            yield phrase("{}: {}.", why, names)


def _missing(card: CardFacts) -> Iterator[Markdown]:
    for kind, what in _KINDS.items():
        if card.get(kind) is None:
            yield Markdown(f"Not measured: {what}{card.why_missing(kind)}")
