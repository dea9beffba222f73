"""Head section: title, verdict with its gates, and third-party notice."""

from __future__ import annotations

from typing import Any

from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.release import Release
from halfbyte.evidence.verdict import ACCEPT, headline
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, box, phrase, table
from halfbyte.publish.card.sections.formats import weight_name


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the title, verdict and gates."""
    release = card.get(Release)
    gates = (
        [[gate.name, gate.required, gate.measured, gate.outcome, gate.why] for gate in release.gates] if release else []
    )
    return {
        "title": card.title,
        "base": card.base,
        "what": f"{weight_name(card)} {'quantization' if card.quantizes else 'version'}",
        "made": card.plan is not None,
        "pruned": card.pruned,
        "verdict": _verdict(card),
        "gates": table(["Gate", "Required", "Measured", "Outcome", "Reason"], gates) if gates else None,
        "quantized_by": card.quantized_by,
        "license": license_words(card),
    }


def _verdict(card: CardFacts) -> Markdown:
    release = card.get(Release)
    if release is None:
        why = card.why_missing(Release)
        return Markdown(f"**Verdict: not judged.** No release gates were evaluated for this checkpoint{why}")
    if release.verdict == ACCEPT:
        reasons = [_sentence(text) for text in release.why if text.strip()]
        why = phrase(" ".join(["{}"] * len(reasons)), *reasons)
        text = phrase("{}", headline(release.verdict, card.get(Evaluation)))
        return Markdown(f"**Verdict: {text}.** {why}".rstrip())
    reasons = [text.rstrip(".") for text in release.why]
    why = phrase("; ".join(["{}"] * len(reasons)) + "." * bool(reasons), *reasons)  # each starts with a gate's name
    forced = (
        "It was published with `--force` despite this verdict."
        if release.forced
        else "`halfbyte publish` requires `--force` to upload a checkpoint with this verdict."
    )
    text = Markdown(f"**Verdict: {release.verdict}. This release was not accepted.** {why}".rstrip())
    return box("CAUTION", text, Markdown(forced))


def _sentence(text: str) -> str:
    """Return a reason as a complete sentence."""
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def license_words(card: CardFacts) -> Markdown:
    """Return the license name, linked if a link is known."""
    name = card.license_name or card.license
    if name is None:
        return Markdown("not stated")
    link = card.license_link
    return Markdown(f"[{phrase('{}', name)}]({link})") if link else phrase("{}", name)
