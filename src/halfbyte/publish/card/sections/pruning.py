"""Pruning section: dropped experts, coverage by domain, and loop rate."""

from __future__ import annotations

from typing import Any

from halfbyte.degeneracy.loop_test import TOLERATED
from halfbyte.evidence.fields import whole
from halfbyte.evidence.loops import LoopCounts, Loops
from halfbyte.evidence.plan import CalibrationFacts, PruneCoverage, PruneRule, PruneSummary
from halfbyte.evidence.probes import ProbeResult, Probes
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted, percent
from halfbyte.publish.card.markdown import Markdown, box, code, fenced, phrase, table

PROBE = "prose-loops"


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the warning, the selection rule, the coverage and the loop test."""
    if not card.pruned:
        return {"pruned": False, "warning": None}
    plan, loops = card.get(PruneSummary), loop_test(card)
    coverage = plan.coverage if plan else PruneCoverage()
    domains = [
        [domain, percent(row.mean, decimals=1), percent(row.worst, decimals=1), counted(row.worst_layer),
         percent(row.mass, decimals=1)]
        for domain, row in coverage.domains.items()
    ]  # fmt: skip
    return {
        "pruned": True,
        "warning": _warning(card, loops),
        "rule": table(["", ""], _rule(card, plan)),
        "domains": table(["Domain", "Mean coverage", "Lowest coverage", "Lowest layer", "Mass kept"], domains)
        if domains
        else None,
        "no_domains": card.missing(PruneSummary) if plan is None else "The prune plan records no coverage.",
        "loops": table(["", "This model", "Source"], _loop_rows(loops)) if loops else None,
        "no_loops": card.missing(Loops) if Loops.kind in card.evidence.missing else None,
        "examples": [fenced(text, "text") for text in loops.examples if text.strip()] if loops else [],
    }


def loop_test(card: CardFacts) -> Loops | None:
    """Return the loop test of these weights, or of the pruned weights they were made from."""
    return card.get(Loops) or (card.plan.earlier_loops() if card.plan else None)


def probe_row(card: CardFacts) -> ProbeResult | None:
    """Return the result of the open-prose loop probe, if it ran."""
    report = card.get(Probes)
    rows = (row for row in (report.probes if report else ()) if row.name == PROBE)
    return next((row for row in rows if row.verdict in ("passed", "failed")), None)


def _warning(card: CardFacts, loops: Loops | None) -> Markdown | None:
    """Return a warning if the loop rate is high or unknown."""
    probe, removed = probe_row(card), _removed(card)
    if loops is None and probe is None:
        text = (
            "{} Pruned models can score well on benchmarks and still loop in open-ended text. **The loop rate of this "
            "model was not measured.**"
        )
        return box("WARNING", phrase(text, removed), _MITIGATION)
    flagged = loops is not None and (loops.flagged or loops.share > TOLERATED)
    failed = probe is not None and probe.verdict == "failed"
    if not flagged and not failed:
        return None
    findings: list[Markdown] = []
    if loops is not None:
        findings.append(phrase("{} of {} open-ended texts loop ({}).", counted(loops.loops), counted(loops.texts),
                               percent(loops.share, decimals=1)))  # fmt: skip
        if loops.short:
            findings.append(phrase("{} of {} end after a few words.", loops.short, counted(loops.texts)))
    if probe is not None and failed:
        findings.append(phrase("The open-prose probe failed: {}.", probe.measured))
    return box("WARNING", Markdown(" ".join([removed, "**Open-ended text is degraded.**", *findings])), _MITIGATION)


_MITIGATION = Markdown(
    "Limit output length (`max_tokens`), prefer structured tasks, and stop generations that repeat themselves "
    "(`halfbyte serve --guard` does this). For other pruned checkpoints, restoring experts is reported to fix looping; "
    "sampling penalties do not reliably fix it."
)


def _removed(card: CardFacts) -> Markdown:
    plan, now = card.get(PruneSummary), card.model.experts
    before = card.served.source_experts or (plan.router.experts if plan else None)
    if not before:
        return Markdown("Routed experts were removed from this checkpoint.")
    most = "up to " if card.served.uneven else ""
    return Markdown(f"{before - now} of {before} routed experts were removed from each layer; {most}{now} remain.")


def _rule(card: CardFacts, plan: PruneSummary | None) -> list[tuple[str, Any]]:
    rule = (plan.rule if plan else None) or PruneRule()
    statistics = plan.statistics if plan else CalibrationFacts()
    protected = sum(len(layer.reasons) for layer in plan.layers.values()) if plan else 0
    tokens = [f"{domain} {counted(number)}" for domain, number in statistics.domains.items()]
    return [
        ("Experts", _removed(card)),
        ("Selection method", phrase("{}, {}", rule.method, rule.select or "not stated")),
        ("Experts protected from pruning", counted(protected)),
        ("Calibration tokens", ", ".join(tokens) or None),
        ("Tokens, SHA-256", code(statistics.tokens_sha256 or "not stated")),
        ("Kept experts, SHA-256", code((plan.kept_sha256 if plan else None) or "not stated")),
        ("Edited by hand", None if plan is None else "yes" if plan.edited else "no"),
        ("Routing after pruning", _routing(card)),
    ]


def _routing(card: CardFacts) -> str:
    keys = ("num_experts_per_tok", "n_group", "topk_group")
    values = [f"{key} {value}" for key in keys if (value := whole(card.text, key)) is not None]
    return ", ".join(values) or "not stated"


def _loop_rows(loops: Loops) -> list[list[Any]]:
    sides: tuple[LoopCounts | None, ...] = (loops, loops.source)
    temperatures = ", ".join(f"{temperature:g}" for temperature in loops.temperatures)
    settings = f"{counted(loops.tokens)} tokens, temperatures {temperatures}" if temperatures else "not stated"
    return [
        ["Texts", *(counted(side and side.texts) for side in sides)],
        ["Looping", *(counted(side and side.loops) for side in sides)],
        ["Ending after a few words", *(counted(side and side.short) for side in sides)],
        ["Cut off", *(counted(side and side.unfinished) for side in sides)],
        ["Loop rate", *(percent(side and side.share, decimals=1) for side in sides)],
        ["95% CI", *(_interval(side) for side in sides)],
        ["Settings", settings, settings if loops.source else "not measured"],
    ]


def _interval(side: LoopCounts | None) -> str:
    if side is None:
        return "not measured"
    return f"{percent(side.low, decimals=1)} to {percent(side.high, decimals=1)}"
