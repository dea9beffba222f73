"""Pruning section: dropped experts, coverage by domain, and loop rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.degeneracy.loop_test import TOLERATED
from halfbyte.evidence.fields import items, mapping, number, rows, texts, whole, words
from halfbyte.plan.prune_record import BEFORE
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted, percent
from halfbyte.publish.card.markdown import Markdown, box, code, fenced, phrase, table

PROBE = "prose-loops"


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the warning, the selection rule, the coverage and the loop test."""
    if not card.pruned:
        return {"pruned": False, "warning": None}
    plan = card.get("prune") or {}
    loops = loop_test(card)
    domains = [
        [domain, percent(row, "mean", decimals=1), percent(row, "worst", decimals=1), counted(row, "worst_layer"),
         percent(row, "mass", decimals=1)]
        for domain, row in mapping(plan, "coverage", "domains").items()
    ]  # fmt: skip
    return {
        "pruned": True,
        "warning": _warning(card, loops),
        "rule": table(["", ""], _rule(card, plan)),
        "domains": table(["Domain", "Mean coverage", "Lowest coverage", "Lowest layer", "Mass kept"], domains)
        if domains
        else None,
        "no_domains": card.missing("prune") if not plan else "The prune plan records no coverage.",
        "loops": table(["", "This model", "Source"], _loop_rows(loops)) if loops else None,
        "no_loops": card.missing("loops") if "loops" in card.evidence.missing else None,
        "examples": [fenced(text, "text") for text in texts(loops, "examples")],
    }


def loop_test(card: CardFacts) -> Mapping[str, Any] | None:
    """Return the loop test of these weights, or of the pruned weights they were made from."""
    return card.get("loops") or mapping(card.plan, BEFORE, "loops") or None


def looping_share(loops: Mapping[str, Any] | None) -> float | None:
    """Return the loop rate."""
    return number(loops, "share") if loops else None


def probe_row(card: CardFacts) -> Mapping[str, Any] | None:
    """Return the result of the open-prose loop probe, if it ran."""
    probes = (row for row in rows(card.get("probe"), "probes") if row.get("name") == PROBE)
    return next((row for row in probes if row.get("verdict") in ("passed", "failed")), None)


def _warning(card: CardFacts, loops: Mapping[str, Any] | None) -> Markdown | None:
    """Return a warning if the loop rate is high or unknown."""
    probe, share = probe_row(card), looping_share(loops)
    removed = _removed(card)
    if share is None and probe is None:
        text = (
            "{} Pruned models can score well on benchmarks and still loop in open-ended text. **The loop rate of this "
            "model was not measured.**"
        )
        return box("WARNING", phrase(text, removed), _MITIGATION)
    flagged = bool(loops and loops.get("flagged")) or (share is not None and share > TOLERATED)
    failed = probe is not None and probe.get("verdict") == "failed"
    if not flagged and not failed:
        return None
    findings: list[Markdown] = []
    if share is not None:
        findings.append(phrase("{} of {} open-ended texts loop ({}).", counted(loops, "loops"), counted(loops, "texts"),
                               percent(share, decimals=1)))  # fmt: skip
        short = whole(loops, "short")
        if short:
            findings.append(phrase("{} of {} end after a few words.", short, counted(loops, "texts")))
    if failed:
        findings.append(phrase("The open-prose probe failed: {}.", words(probe, "measured")))
    return box("WARNING", Markdown(" ".join([removed, "**Open-ended text is degraded.**", *findings])), _MITIGATION)


_MITIGATION = Markdown(
    "Limit output length (`max_tokens`), prefer structured tasks, and stop generations that repeat themselves "
    "(`halfbyte serve --guard` does this). For other pruned checkpoints, restoring experts is reported to fix looping; "
    "sampling penalties do not reliably fix it."
)


def _removed(card: CardFacts) -> Markdown:
    before, now = card.served.source_experts or whole(card.get("prune"), "router", "experts"), card.model.experts
    if not before:
        return Markdown("Routed experts were removed from this checkpoint.")
    most = "up to " if card.served.uneven else ""
    return Markdown(f"{before - now} of {before} routed experts were removed from each layer; {most}{now} remain.")


def _rule(card: CardFacts, plan: Mapping[str, Any]) -> list[tuple[str, Any]]:
    rule = mapping(plan, "rule")
    protected = sum(len(mapping(layer, "reasons")) for layer in mapping(plan, "layers").values())
    tokens = [f"{domain} {counted(number)}" for domain, number in mapping(plan, "statistics", "domains").items()]
    return [
        ("Experts", _removed(card)),
        ("Selection method", phrase("{}, {}", rule.get("method"), rule.get("select") or "not stated")),
        ("Experts protected from pruning", counted(protected)),
        ("Calibration tokens", ", ".join(tokens) or None),
        ("Tokens, SHA-256", code(words(plan, "statistics", "tokens_sha256") or "not stated")),
        ("Kept experts, SHA-256", code(words(plan, "kept_sha256") or "not stated")),
        ("Edited by hand", "yes" if plan.get("edited") is True else "no" if plan else None),
        ("Routing after pruning", _routing(card)),
    ]


def _routing(card: CardFacts) -> str:
    keys = ("num_experts_per_tok", "n_group", "topk_group")
    values = [f"{key} {value}" for key in keys if (value := whole(card.text, key)) is not None]
    return ", ".join(values) or "not stated"


def _loop_rows(loops: Mapping[str, Any]) -> list[list[Any]]:
    source = mapping(loops, "source")
    temperatures = ", ".join(f"{t:g}" for value in items(loops, "temperatures") if (t := number(value)) is not None)
    settings = f"{counted(loops, 'tokens')} tokens, temperatures {temperatures}" if temperatures else "not stated"
    names = (("Texts", "texts"), ("Looping", "loops"), ("Ending after a few words", "short"), ("Cut off", "unfinished"))
    table_rows = [[name, *(counted(side, key) for side in (loops, source))] for name, key in names]
    table_rows.append(["Loop rate", *(percent(side, "share", decimals=1) for side in (loops, source))])
    table_rows.append(["95% CI", *(f"{percent(s, 'low', decimals=1)} to {percent(s, 'high', decimals=1)}" if s
                                   else "not measured" for s in (loops, source))])  # fmt: skip
    return [*table_rows, ["Settings", settings, settings if source else "not measured"]]
