"""One defect of a text: what it is, and where, so that a caller can mark it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

KindOfText = Literal["prose", "code", "json", "any"]


class Severity(Enum):
    """Whether one such defect is enough to call an answer broken."""

    HARD = "hard"
    SOFT = "soft"  # good texts have it now and then: for rates, not for verdicts


@dataclass(frozen=True, slots=True)
class Defect:
    """text[start:end] is what offends; `kind` is a word for tables, `detail` a sentence for people."""

    kind: str
    start: int
    end: int
    detail: str
    severity: Severity = Severity.HARD
