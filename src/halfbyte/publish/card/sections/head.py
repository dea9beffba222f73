"""What it is in one sentence, whether it was accepted, and whose model it is."""

from __future__ import annotations

from typing import Any

from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, box, phrase, table
from halfbyte.publish.card.reading import rows, texts, words
from halfbyte.publish.card.sections.formats import weight_name

ACCEPT = "ACCEPT"
_VERDICTS = (ACCEPT, "REGRESSION", "ANOMALOUS", "INFEASIBLE")


def facts(known: Known) -> dict[str, Any]:
    """Return title, verdict and gates."""
    release = known.get("release")
    gates = [[gate.get(key) for key in ("name", "wanted", "measured", "outcome", "why")]
             for gate in rows(release, "gates")]  # fmt: skip
    return {
        "title": known.title,
        "base": known.base,
        "what": f"{weight_name(known)} {'quantization' if known.quantizes else 'copy'}",
        "made": bool(known.plan),
        "pruned": known.pruned,
        "verdict": _verdict(known),
        "next": texts(release, "next"),
        "gates": table(["Gate", "Wanted", "Measured", "Outcome", "Why"], gates) if gates else None,
        "quantized_by": known.quantized_by,
        "license": license_words(known),
    }


def _verdict(known: Known) -> Markdown:
    release = known.get("release")
    verdict = words(release, "verdict")
    if release is None or verdict not in _VERDICTS:
        why = known.how_to("release", "judge") if release is None else ": release.json holds no verdict."
        return Markdown(f"**Verdict: not judged.** No gate has accepted or refused this checkpoint{why}")
    why = phrase(" ".join(["{}"] * len(texts(release, "why"))), *texts(release, "why"))
    if verdict == ACCEPT:
        return Markdown(f"**Verdict: ACCEPT.** {why}".rstrip())
    forced = (
        "It was published by force, against the verdict."
        if release.get("forced") is True
        else f"halfbyte publishes only what its gates accept: a copy of this checkpoint with the verdict {verdict} "
        "that you can download was published by force, against the verdict."
    )
    return box("CAUTION", Markdown(f"**Verdict: {verdict}. This release was not accepted.** {why}".rstrip()),
               Markdown(forced))  # fmt: skip


def license_words(known: Known) -> Markdown:
    """Return the licence in a sentence, with a link where there is one."""
    name = known.license_name or known.license
    if name is None:
        return Markdown("not stated")
    link = known.license_link
    return Markdown(f"[{phrase('{}', name)}]({link})") if link else phrase("{}", name)
