"""A sentence of advice for the user, with its level and an optional fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from halfbyte.ui.console import Level


@dataclass(frozen=True, slots=True)
class Advice:
    """One recommendation: good, a note, or bad (halfbyte is unusable here; comes with a fix)."""

    level: Level
    text: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the data that `--json` prints."""
        return asdict(self)
