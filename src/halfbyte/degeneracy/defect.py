"""A defect of a text: its kind, position and description."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

KindOfText = Literal["prose", "code", "json", "any"]


class Severity(Enum):
    """Whether one defect of this kind is enough to call an answer broken."""

    HARD = "hard"
    SOFT = "soft"  # good texts have it occasionally: used for rates, not for verdicts


@dataclass(frozen=True, slots=True)
class Defect:
    """`text[start:end]` is defective; `kind` is a label for tables, `detail` a sentence."""

    kind: str
    start: int
    end: int
    detail: str
    severity: Severity = Severity.HARD
