"""What a reader must not conclude: derived from the evidence, and from what is missing of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, code, inline, phrase
from halfbyte.publish.card.reading import mapping, rows, whole, words
from halfbyte.publish.card.sections.calibration import calibrates
from halfbyte.publish.card.sections.reproduction import source_of_data
from halfbyte.validate.probe_coverage import coverage

_CHAT = "chat"
_KINDS = {
    "audit": "that the files are what was planned", "compare": "how far the outputs are from the source's",
    "eval": "the quality on tasks", "probe": "the behaviour of a server", "bench": "the speed",
}  # fmt: skip


def facts(known: Known) -> dict[str, Any]:
    """Return the sentences."""
    return {"sentences": [*_data(known), *_quality(known), *_serving(known), *_missing(known)]}


def _data(known: Known) -> Iterator[Markdown]:
    if calibrates(known):
        sets = Markdown(", ".join(source_of_data(known))) or None
        yield phrase("Scales were calibrated on {}. For other domains or languages, calibrate on data of theirs.", sets)
    elif known.plan:
        yield Markdown("Nothing was calibrated: the scales come from the weights alone.")
    unseen = whole(known.get("coverage"), "unseen_experts")
    if unseen:
        yield phrase("Experts that saw no calibration token: {}. Their activation scales are a backstop.", unseen)
    if known.pruned:
        yield Markdown("Experts were removed: what the calibration data did not exercise is lost first.")


def _quality(known: Known) -> Iterator[Markdown]:
    found = known.get("eval")
    tasks = rows(found, "tasks")
    base = [task for task in tasks if (asked := words(task, "asked_as")) and not asked.startswith(_CHAT)]
    if base:
        names = ", ".join(str(task.get("task")) for task in base)
        yield phrase("{}: asked as completions, without the chat template; chats may score otherwise.", names)
    limit = whole(found, "arguments", "limit")
    if limit:
        yield phrase("Only the first {} items of each task were asked: small differences cannot be seen.", limit)
    if any(words(task, "label") == "INCONCLUSIVE" for task in tasks):
        yield Markdown("An inconclusive task shows neither a loss nor the absence of one.")
    if found is not None and tasks and not any(mapping(task, "reference") for task in tasks):
        yield Markdown("The source was not asked the same questions: the scores say nothing about what was lost.")
    if known.inspection.vision_parameters and not _vision(known):
        yield Markdown("The vision path was not validated: text is what was measured.")


def _vision(known: Known) -> bool:
    found = (row for row in rows(known.get("probe"), "probes") if row.get("name") == "vision")
    return any(row.get("verdict") == "passed" for row in found)


def _serving(known: Known) -> Iterator[Markdown]:
    here = {known.evidence.out.resolve().name, known.title}
    for kind, what in (("eval", "evaluated"), ("probe", "probed"), ("bench", "benchmarked")):
        name = known.served_as(kind)
        if name is not None and name not in here:
            text = (
                "The server that was {} said that it serves {}; this is {}, and that both are the same is not recorded."
            )
            yield phrase(text, what, code(name), code(known.evidence.out.resolve().name))
    compared = PurePath(words(known.get("compare"), "second") or "").name
    if compared and compared not in here:
        text = "The comparison with the source is of {}; this is {}, and that both are the same is not recorded."
        yield phrase(text, code(compared), code(known.evidence.out.resolve().name))
    if known.emulated:
        yield Markdown(
            "It was served by emulation: numbers are computed as the format defines them, on hardware without it. "
            "Kernels on real hardware may round otherwise, and speed says nothing."
        )
    yield from _not_probed(known)
    emulated = mapping(known.get("compare"), "emulated")
    if known.get("compare") is not None and not emulated and known.served.activations != "none":
        yield Markdown("The comparison with the source is of the weights: activations were not quantized in it.")


def _not_probed(known: Known) -> Iterator[Markdown]:
    """Name every probe that did not run, by what it lacked."""
    covered = coverage(rows(known.get("probe"), "probes"))
    for left, why in (
        (covered.over_budget, "Probes that were left out because they did not fit the budget"),
        (covered.unreachable, "Probes that were not asked because the server went silent"),
        (covered.impossible, "Probes that were skipped, each for the reason in their table"),
    ):
        if left:  # all of them: each is a question that nobody asked
            names = Markdown("; ".join(inline(row.get("title")) for row in left))
            yield phrase("{}: {}.", why, names)


def _missing(known: Known) -> Iterator[Markdown]:
    for kind, what in _KINDS.items():
        if known.get(kind) is None:
            yield Markdown(f"Not measured: {what}{known.how_to(kind, 'measure')}")
