"""What is known to cause a failing probe: data, with where it was seen."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import yaml
from pydantic import TypeAdapter

from halfbyte.validate.probe.profiles import Questions


class Cause(Questions):
    """One known cause, or a few with the same sign."""

    sign: str  # what one sees
    known: str  # what was found to be behind it, and where
    fix: str  # what to try next


@cache
def causes() -> dict[str, Cause]:
    """Read all of them by their keys."""
    text = (files("halfbyte.validate") / "data" / "probe_causes.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Cause]).validate_python(yaml.safe_load(text))
