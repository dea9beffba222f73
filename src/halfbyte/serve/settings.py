"""Rules and facts become settings: each with its value and its reason, in the order of the engine's flags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.serve.conditions import Facts
from halfbyte.serve.given import ENVIRONMENT
from halfbyte.serve.knowledge import SWITCH, Engine, Rule, setting_types

_ASKED = "asked for with --set"
_NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Setting:
    """One flag or one environment variable, with its reason. A switch has no words after its flag."""

    name: str
    flag: str
    value: Any
    reason: str
    source: str

    @property
    def words(self) -> tuple[str, ...]:
        """Return the arguments as a program gets them."""
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
    """A warning and where it comes from."""

    text: str
    source: str


def spelled(value: Any) -> str:
    """Return a value as a command line writes it: blocks and lists as JSON without spaces."""
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"))
    return str(value)


def choose(rules: Sequence[Rule], facts: Facts, engine: Engine, given: Mapping[str, Any]) -> list[Setting]:
    """Return the engine's settings: for each the first rule that holds, or what was given."""
    chosen = {rule.set: rule for rule in reversed(rules) if rule.set is not None and rule.when.holds(facts)}
    settings: list[Setting] = []
    for name, spelling in engine.flags.items():
        rule, flag = chosen.get(name), spelling.removesuffix(SWITCH)
        if name in given:
            value, reason, source = given[name], _ASKED, "you"
            if rule is not None and setting_types()[name].keys:
                value = _joined(filled(rule.to, facts), value)
        elif rule is not None:
            value, reason, source = filled(rule.to, facts), filled(rule.because, facts), rule.source
        else:
            continue
        if value is not None and value is not False:
            settings.append(Setting(name, flag, value, str(reason), source))
    return settings


def _joined(ours: dict[str, Any] | None, given: dict[str, Any]) -> dict[str, Any]:
    """Put what was given into our block; a key without a value leaves it."""
    both: dict[str, Any] = {**(ours or {}), **given}
    return {key: value for key, value in both.items() if value is not None}


def environment(rules: Sequence[Rule], facts: Facts, given: Mapping[str, Any]) -> list[Setting]:
    """Return the environment variables: for each the first rule that holds, or what was given."""
    chosen: dict[str, Setting] = {}
    for rule in rules:
        if rule.env is not None and rule.env not in chosen and rule.when.holds(facts) and rule.to is not None:
            chosen[rule.env] = Setting(rule.env, rule.env, str(rule.to), str(filled(rule.because, facts)), rule.source)
    for name, value in given.items():
        if name.startswith(ENVIRONMENT):
            key = name.removeprefix(ENVIRONMENT)
            chosen.pop(key, None)
            if value:
                chosen[key] = Setting(key, key, value, _ASKED, "you")
    return list(chosen.values())


def warnings(rules: Sequence[Rule], facts: Facts) -> list[Note]:
    """Return every warning that holds."""
    holding = [rule for rule in rules if rule.warn is not None and rule.when.holds(facts)]
    return [Note(str(filled(rule.warn, facts)), rule.source) for rule in holding]


def refusal(rules: Sequence[Rule], facts: Facts, given: Mapping[str, Any]) -> Rule | None:
    """Return the rule by which this cannot work, if there is one."""
    holding = (rule for rule in rules if rule.refuse is not None and rule.when.holds(facts))
    return next((rule for rule in holding if rule.unless_set not in given), None)


def refused(rule: Rule, facts: Facts) -> UsageError:
    """Return a refusal as it is said."""
    where = f"{facts['engine']} on {facts['gpus']}"
    return UsageError(str(filled(rule.refuse, facts)), where=where, fix=str(filled(rule.fix, facts)))


def filled(value: Any, facts: Facts) -> Any:
    """Put facts in for `{names}`; a value that is nothing but a name becomes the fact itself, as a number if it is."""
    if isinstance(value, dict):
        return {key: filled(item, facts) for key, item in cast("dict[str, Any]", value).items()}
    if not isinstance(value, str):
        return value
    if (whole := _NAME.fullmatch(value)) and whole[1] in facts:
        return facts[whole[1]]
    return _NAME.sub(lambda found: str(facts.get(found[1], found[0])), value)
