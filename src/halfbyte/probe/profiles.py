"""Profiles: the questions of the probes as data. `kimi` is for the real model, `mini` for kimi-mini.

Each probe validates its section with its own pydantic model, so an invalid file is rejected before any request. A
section is in the profile's file, or in a file of its own name in the profile's folder.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field

from halfbyte.errors import UsageError
from halfbyte.ui.suggest import did_you_mean

_FOLDER = files("halfbyte.probe") / "data" / "profiles"
Section = TypeVar("Section", bound="Questions")


class Questions(BaseModel):
    """Base of every section; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Profile(Questions):
    """A profile, selected by `--profile`."""

    name: str
    description: str
    chat_options: dict[str, Any] = Field(default_factory=dict[str, Any])  # of every chat, unless a probe overrides them
    thinking_options: dict[str, Any] = Field(default_factory=dict[str, Any])  # of a chat with thinking on
    concurrency: int = Field(gt=0)
    timeout_s: float = Field(gt=0)  # of one request
    questions: dict[str, Any]

    def section(self, name: str, kind: type[Section]) -> Section | None:
        """Return the section of that name, or None if this profile lacks it."""
        data = self.questions.get(name)
        return None if data is None else kind.model_validate(data)

    def need(self, name: str, kind: type[Section]) -> Section:
        """Return the section of that name; `lacks_section` has checked that it exists."""
        section = self.section(name, kind)
        assert section is not None, name
        return section


def profile_names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(path.name.removesuffix(".yaml") for path in _FOLDER.iterdir() if path.name.endswith(".yaml"))


@cache
def load_profile(name: str) -> Profile:
    """Load a profile."""
    names = profile_names()
    if name not in names:
        raise UsageError(f"unknown profile '{name}'", where="--profile", fix=did_you_mean(name, names))
    data = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    for path in (_FOLDER / name).iterdir():
        data["questions"][path.name.removesuffix(".yaml")] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Profile.model_validate(data)
