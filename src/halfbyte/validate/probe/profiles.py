"""The questions as data: `kimi` for the real model, `mini` for kimi-mini, which can answer little else.

A probe reads its section with a model of its own, so that a wrong file is refused before anything is asked. A section
stands in the profile's file, or in a file of its own name in the profile's folder.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field

from halfbyte.errors import UsageError
from halfbyte.terminal.suggest import did_you_mean

_FOLDER = files("halfbyte.validate") / "data" / "probe_profiles"
Section = TypeVar("Section", bound="Questions")


class Questions(BaseModel):
    """The base of every section: a key that nobody reads is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Profile(Questions):
    """What `--profile` names."""

    name: str
    description: str
    chat_options: dict[str, Any] = Field(default_factory=dict[str, Any])  # of every chat, unless a probe says otherwise
    thinking_options: dict[str, Any] = Field(default_factory=dict[str, Any])  # of a chat that is to think
    concurrency: int = Field(gt=0)
    timeout_s: float = Field(gt=0)  # of one request
    questions: dict[str, Any]

    def section(self, name: str, kind: type[Section]) -> Section | None:
        """Return the questions of that name, or None where this profile has none."""
        found = self.questions.get(name)
        return None if found is None else kind.model_validate(found)

    def need(self, name: str, kind: type[Section]) -> Section:
        """Return the questions of that name; `lacks_section` has said that there are some."""
        found = self.section(name, kind)
        assert found is not None, name
        return found


def profile_names() -> list[str]:
    """Return the profiles that there are."""
    return sorted(path.name.removesuffix(".yaml") for path in _FOLDER.iterdir() if path.name.endswith(".yaml"))


@cache
def load_profile(name: str) -> Profile:
    """Read a profile."""
    names = profile_names()
    if name not in names:
        raise UsageError(f"there is no profile '{name}'", where="--profile", fix=did_you_mean(name, names))
    found = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    for path in (_FOLDER / name).iterdir():
        found["questions"][path.name.removesuffix(".yaml")] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Profile.model_validate(found)
