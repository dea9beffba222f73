"""Which experts went, what the domains kept, and whether the model loops: users met the loops before any benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.prune.record import BEFORE
from halfbyte.publish.card.figures import counted, percent
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, box, code, fenced, phrase, table
from halfbyte.publish.card.reading import items, mapping, number, rows, texts, whole, words
from halfbyte.publish.evidence import PLACES
from halfbyte.validate.loop_rate import TOLERATED

PROBE = "prose-loops"


def facts(known: Known) -> dict[str, Any]:
    """Return the warning, the rule and both tables."""
    if not known.pruned:
        return {"pruned": False, "warning": None}
    plan = known.get("prune") or {}
    loops = loop_test(known)
    domains = [
        [domain, percent(row, "mean", decimals=1), percent(row, "worst", decimals=1), counted(row, "worst_layer"),
         percent(row, "mass", decimals=1)]
        for domain, row in mapping(plan, "coverage", "domains").items()
    ]  # fmt: skip
    return {
        "pruned": True,
        "warning": _warning(known, loops),
        "rule": table(["", ""], _rule(known, plan)),
        "domains": table(["Domain", "Covered, mean", "Covered, worst layer", "That layer", "Mass kept"], domains)
        if domains
        else None,
        "no_domains": known.missing("prune") if not plan else "The prune plan records no coverage.",
        "loops": table(["", "This", "Source"], _loop_rows(loops)) if loops else None,
        "no_loops": known.missing("loops") if "loops" in known.evidence.missing else None,
        "examples": [fenced(text, "text") for text in texts(loops, "examples")],
    }


def loop_test(known: Known) -> Mapping[str, Any] | None:
    """Return what the loop test found, of these weights or of those that were pruned before."""
    return known.get("loops") or mapping(known.plan, BEFORE, "loops") or None


def looping_share(loops: Mapping[str, Any] | None) -> float | None:
    """Return the share of texts that loop."""
    return number(loops, "share") if loops else None


def probe_row(known: Known) -> Mapping[str, Any] | None:
    """Return the probe of loops in open prose, where it was asked."""
    found = (row for row in rows(known.get("probe"), "probes") if row.get("name") == PROBE)
    return next((row for row in found if row.get("verdict") in ("passed", "failed")), None)


def _warning(known: Known, loops: Mapping[str, Any] | None) -> Markdown | None:
    """Return the box, where the rate is high or nobody knows it."""
    probe, share = probe_row(known), looping_share(loops)
    gone = _gone(known)
    if share is None and probe is None:
        text = (
            "{} Pruned models can score well and still never end a story, and **whether this one loops was not "
            "measured**. To measure it: {}"
        )
        return box("WARNING", phrase(text, gone, code(PLACES["loops"].command.format(out="OUT"))), _MITIGATION)
    flagged = bool(loops and loops.get("flagged")) or (share is not None and share > TOLERATED)
    failed = probe is not None and probe.get("verdict") == "failed"
    if not flagged and not failed:
        return None
    told: list[Markdown] = []
    if share is not None:
        told.append(phrase("{} of {} open-ended texts loop ({}).", counted(loops, "loops"), counted(loops, "texts"),
                           percent(share, decimals=1)))  # fmt: skip
        short = whole(loops, "short")
        if short:
            told.append(phrase("{} of {} end after a few words.", short, counted(loops, "texts")))
    if failed:
        told.append(phrase("The probe of open prose failed: {}.", words(probe, "measured")))
    return box("WARNING", Markdown(" ".join([gone, "**It breaks in open-ended text.**", *told])), _MITIGATION)


_MITIGATION = Markdown(
    "Keep outputs bounded (a sane `max_tokens`), prefer structured tasks, and stop a generation that repeats itself "
    "(`halfbyte serve --guard` does). Of other pruned checkpoints it is reported that sampling penalties "
    "do not reliably cure it, and that restoring experts does."
)


def _gone(known: Known) -> Markdown:
    before, now = known.served.source_experts or whole(known.get("prune"), "router", "experts"), known.model.experts
    if not before:
        return Markdown("Routed experts were removed from this checkpoint.")
    most = "up to " if known.served.uneven else ""
    return Markdown(f"{before - now} of {before} routed experts were removed from each layer: {most}{now} stay.")


def _rule(known: Known, plan: Mapping[str, Any]) -> list[tuple[str, Any]]:
    rule = mapping(plan, "rule")
    protected = sum(len(mapping(layer, "reasons")) for layer in mapping(plan, "layers").values())
    tokens = [f"{domain} {counted(number)}" for domain, number in mapping(plan, "statistics", "domains").items()]
    return [
        ("Experts", _gone(known)),
        ("Chosen by", phrase("{}, {}", rule.get("method"), rule.get("select") or "not stated")),
        ("Kept whatever their score", counted(protected)),
        ("Statistics over tokens", ", ".join(tokens) or None),
        ("Hash of those tokens", code(words(plan, "statistics", "tokens_sha256") or "not stated")),
        ("Hash of the kept experts", code(words(plan, "kept_sha256") or "not stated")),
        ("Edited by hand", "yes" if plan.get("edited") is True else "no" if plan else None),
        ("Routing after it", _routing(known)),
    ]


def _routing(known: Known) -> str:
    keys = ("num_experts_per_tok", "n_group", "topk_group")
    told = [f"{key} {value}" for key in keys if (value := whole(known.text, key)) is not None]
    return ", ".join(told) or "not stated"


def _loop_rows(loops: Mapping[str, Any]) -> list[list[Any]]:
    source = mapping(loops, "source")
    temperatures = ", ".join(f"{found:g}" for one in items(loops, "temperatures") if (found := number(one)) is not None)
    asked = f"{counted(loops, 'tokens')} tokens, temperatures {temperatures}" if temperatures else "not stated"
    names = (("Texts", "texts"), ("Loop", "loops"), ("End after a few words", "short"), ("Cut off", "unfinished"))
    found = [[name, *(counted(side, key) for side in (loops, source))] for name, key in names]
    found.append(["Share that loops", *(percent(side, "share", decimals=1) for side in (loops, source))])
    found.append(["95 % interval", *(f"{percent(s, 'low', decimals=1)} to {percent(s, 'high', decimals=1)}" if s
                                     else "not measured" for s in (loops, source))])  # fmt: skip
    return [*found, ["Asked for", asked, asked if source else "not measured"]]
