"""Known causes of failing probes, as data with references."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import yaml
from pydantic import TypeAdapter

from halfbyte.probe.profiles import Questions


class Cause(Questions):
    """One known cause, or several with the same symptom."""

    sign: str  # symptom
    known: str  # cause, and where it was seen
    fix: str  # what to try next


@cache
def causes() -> dict[str, Cause]:
    """Load all causes by key."""
    text = (files("halfbyte.probe") / "data" / "causes.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Cause]).validate_python(yaml.safe_load(text))
