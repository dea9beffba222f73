"""Evaluate rules against facts and return settings with their reasons, in the order of the engine's flags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.serve.conditions import Facts
from halfbyte.serve.knowledge import SWITCH, Engine, Rule, setting_types
from halfbyte.serve.overrides import ENVIRONMENT

_REQUESTED = "requested with --set"
_NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag or environment variable with its value and reason. A switch has only its flag."""

    name: str
    flag: str
    value: Any
    reason: str
    source: str

    @property
    def words(self) -> tuple[str, ...]:
        """Return the command-line arguments."""
        if self.value is True:
            return (self.flag,)
        return (self.flag, spelled(self.value))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it."""
        return {
            "setting": self.name,
            "flag": self.flag,
            "value": self.value,
            "reason": self.reason,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True)
class Note:
    """A warning and its source."""

    text: str
    source: str


def spelled(value: Any) -> str:
    """Return a value as a command-line argument: mappings and lists as compact JSON."""
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"))
    return str(value)


def choose(rules: Sequence[Rule], facts: Facts, engine: Engine, overrides: Mapping[str, Any]) -> list[Setting]:
    """Return the engine's settings: for each one the `--set` value, or that of the first matching rule."""
    chosen = {rule.set: rule for rule in reversed(rules) if rule.set is not None and rule.when.holds(facts)}
    settings: list[Setting] = []
    for name, spelling in engine.flags.items():
        rule, flag = chosen.get(name), spelling.removesuffix(SWITCH)
        if name in overrides:
            value, reason, source = overrides[name], _REQUESTED, "you"
            if rule is not None and setting_types()[name].keys:
                value = _joined(filled(rule.to, facts), value)
        elif rule is not None:
            value, reason, source = filled(rule.to, facts), filled(rule.because, facts), rule.source
        else:
            continue
        if value is not None and value is not False:
            settings.append(Setting(name, flag, value, str(reason), source))
    return settings


def _joined(ours: dict[str, Any] | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """Merge the user's block into ours; a key set to null is removed."""
    both: dict[str, Any] = {**(ours or {}), **overrides}
    return {key: value for key, value in both.items() if value is not None}


def environment(rules: Sequence[Rule], facts: Facts, overrides: Mapping[str, Any]) -> list[Setting]:
    """Return the environment variables: for each one the `--set` value, or that of the first matching rule."""
    chosen: dict[str, Setting] = {}
    for rule in rules:
        if rule.env is not None and rule.env not in chosen and rule.when.holds(facts) and rule.to is not None:
            chosen[rule.env] = Setting(rule.env, rule.env, str(rule.to), str(filled(rule.because, facts)), rule.source)
    for name, value in overrides.items():
        if name.startswith(ENVIRONMENT):
            key = name.removeprefix(ENVIRONMENT)
            chosen.pop(key, None)
            if value:
                chosen[key] = Setting(key, key, value, _REQUESTED, "you")
    return list(chosen.values())


def warnings(rules: Sequence[Rule], facts: Facts) -> list[Note]:
    """Return all warnings whose conditions hold."""
    holding = [rule for rule in rules if rule.warn is not None and rule.when.holds(facts)]
    return [Note(str(filled(rule.warn, facts)), rule.source) for rule in holding]


def refusal(rules: Sequence[Rule], facts: Facts, overrides: Mapping[str, Any]) -> Rule | None:
    """Return the first rule that refuses this launch, or None."""
    holding = (rule for rule in rules if rule.refuse is not None and rule.when.holds(facts))
    return next((rule for rule in holding if rule.unless_set not in overrides), None)


def refused(rule: Rule, facts: Facts) -> UsageError:
    """Return the error for a refusing rule."""
    where = f"{facts['engine']} on {facts['gpus']}"
    return UsageError(str(filled(rule.refuse, facts)), where=where, fix=str(filled(rule.fix, facts)))


def filled(value: Any, facts: Facts) -> Any:
    """Substitute facts for `{names}`; a value that is only a name becomes the fact itself and keeps its type."""
    if isinstance(value, dict):
        return {key: filled(item, facts) for key, item in cast("dict[str, Any]", value).items()}
    if not isinstance(value, str):
        return value
    if (whole := _NAME.fullmatch(value)) and whole[1] in facts:
        return facts[whole[1]]
    return _NAME.sub(lambda match: str(facts.get(match[1], match[0])), value)
