"""Head section: title, verdict with its gates, and third-party notice."""

from __future__ import annotations

from typing import Any, get_args

from halfbyte.evidence.fields import rows, texts, words
from halfbyte.evidence.verdict import ACCEPT, Verdict, headline
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, box, phrase, table
from halfbyte.publish.card.sections.formats import weight_name

_VERDICTS = get_args(Verdict)


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the title, verdict and gates."""
    release = card.get("release")
    gates = [[gate.get(key) for key in ("name", "wanted", "measured", "outcome", "why")]
             for gate in rows(release, "gates")]  # fmt: skip
    return {
        "title": card.title,
        "base": card.base,
        "what": f"{weight_name(card)} {'quantization' if card.quantizes else 'version'}",
        "made": bool(card.plan),
        "pruned": card.pruned,
        "verdict": _verdict(card),
        "gates": table(["Gate", "Required", "Measured", "Outcome", "Reason"], gates) if gates else None,
        "quantized_by": card.quantized_by,
        "license": license_words(card),
    }


def _verdict(card: CardFacts) -> Markdown:
    release = card.get("release")
    verdict = words(release, "verdict")
    if release is None or verdict not in _VERDICTS:
        why = card.why_missing("release") if release is None else " (release.json contains no verdict)."
        return Markdown(f"**Verdict: not judged.** No release gates were evaluated for this checkpoint{why}")
    reasons = [_sentence(text) if verdict == ACCEPT else text.rstrip(".") for text in texts(release, "why")]
    if verdict == ACCEPT:
        why = phrase(" ".join(["{}"] * len(reasons)), *reasons)
        text = phrase("{}", headline(verdict, card.get("eval")))
        return Markdown(f"**Verdict: {text}.** {why}".rstrip())
    why = phrase("; ".join(["{}"] * len(reasons)) + "." * bool(reasons), *reasons)  # each starts with a gate's name
    forced = (
        "It was published with `--force` despite this verdict."
        if release.get("forced") is True
        else "`halfbyte publish` requires `--force` to upload a checkpoint with this verdict."
    )
    return box("CAUTION", Markdown(f"**Verdict: {verdict}. This release was not accepted.** {why}".rstrip()),
               Markdown(forced))  # fmt: skip


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
