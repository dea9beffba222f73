"""Render the card: front matter, then each section's template in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.front_matter import front_matter
from halfbyte.publish.card.markdown import bullets, environment
from halfbyte.publish.card.sections import (
    audit,
    calibration,
    closing,
    comparison,
    evaluation,
    glance,
    hardware,
    head,
    limitations,
    probes,
    pruning,
    reproduction,
    serving,
    speed,
)

SECTIONS: Mapping[str, Callable[[CardFacts], dict[str, Any]]] = {
    "head": head.facts,
    "warning": pruning.facts,
    "glance": glance.facts,
    "evaluation": evaluation.facts,
    "comparison": comparison.facts,
    "pruning": pruning.facts,
    "probes": probes.facts,
    "speed": speed.facts,
    "hardware": hardware.facts,
    "serving": serving.facts,
    "reproduction": reproduction.facts,
    "calibration": calibration.facts,
    "audit": audit.facts,
    "limitations": limitations.facts,
    "closing": closing.facts,
}
_BLANK_LINES = re.compile(r"\n{3,}")


def render(card: CardFacts) -> str:
    """Return the text of README.md. The same evidence always gives the same bytes."""
    templates = environment()
    parts = [
        templates.get_template(f"{name}.md.jinja").render(facts(card), bullets=bullets)
        for name, facts in SECTIONS.items()
    ]
    body = _BLANK_LINES.sub("\n\n", "\n\n".join(part.strip() for part in parts if part.strip()))
    return f"---\n{front_matter(card).to_yaml()}\n---\n\n{body}\n"
