"""Evaluate rules and `--set name=value` against facts; return settings and reasons in the order of the engine's flags.

Values of `--set` are checked against their types in setting_types.yaml. An unchecked value would make the engine fail
minutes later, or a flag consume the next argument.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.evidence.launches import LaunchSetting
from halfbyte.recipe.strict_yaml import parse_value
from halfbyte.serve.launch_data import SWITCH, Engine, Facts, Rule, SettingType, setting_types
from halfbyte.ui.suggest import did_you_mean

ENVIRONMENT = "env."  # before the name of a variable in --set
# Names are written into scripts unquoted, so other characters would be executed by the shell.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Variables of the generated scripts, and variables that are read-only in bash.
_OF_THE_SCRIPT = frozenset(("MODEL", "PORT", "default_model", "arguments"))
_OF_BASH = frozenset(("UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"))
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)

_REQUESTED = "requested with --set"
_NAME = re.compile(r"\{(\w+)\}")


def overrides(options: Sequence[str], name: str, engine: Engine) -> dict[str, Any]:
    """Parse the `--set` options; raise UsageError for a setting that the engine lacks or a value of the wrong type."""
    values: dict[str, Any] = {}
    for text in options:
        setting, equals, value = text.partition("=")
        setting = setting.strip()
        if not equals or not setting:
            fix = "write name=value, e.g. kv_cache_dtype=fp8"
            raise UsageError(f"'{text}' is not of the form name=value", where="--set", fix=fix)
        if setting.startswith(ENVIRONMENT):
            values[setting] = _variable(setting, value)
            continue
        setting = setting.replace("-", "_")
        kind = setting_types().get(setting)
        if kind is not None:
            _refuse_option(setting, kind)
        if kind is None or setting not in engine.flags:
            what = f"{engine.title} has no setting '{setting}'"
            raise UsageError(what, where="--set", fix=did_you_mean(setting, engine.flags))
        values[setting] = _checked(setting, parse_value(value, f"--set {text}"), value, kind)
        _refuse_choice(setting, values[setting], kind.choices.get(name) or kind.choices.get(engine.flags_of or ""))
    return values


def _variable(setting: str, value: str) -> str:
    name = setting.removeprefix(ENVIRONMENT)
    if not _VARIABLE.fullmatch(name):
        fix = "write env.NAME=value, with letters, digits and _ in the name"
        raise UsageError(f"{name!r} is not a valid variable name", where="--set", fix=fix)
    if name in _OF_THE_SCRIPT:
        what = f"{name} is used by the script itself"
        raise UsageError(
            what, where="--set", fix="set MODEL or PORT when you start the script, use settings for the rest"
        )
    if name in _OF_BASH:
        raise UsageError(f"{name} is read-only in bash", where="--set", fix="leave it out")
    if "\0" in value:
        raise UsageError(f"the value of {name} contains a NUL character", where="--set", fix="remove it")
    return value


def _checked(setting: str, value: Any, text: str, kind: SettingType, written: str = "{name}={value}") -> Any:
    """Return the value if it is valid for its setting; `written` is the template for examples in errors."""
    if value is None:
        if kind.needed:
            fix = f"write {_typed(written, setting, 'VALUE')}, or leave it out for the default"
            raise UsageError(f"{setting} needs a value, because the fit depends on it", where="--set", fix=fix)
        return None
    holds, description, example = _TYPES[kind.type]
    if not holds(value):
        fix = f"write {_typed(written, setting, kind.example or example)}"
        raise UsageError(f"{setting} must be {description}, not '{text}'", where="--set", fix=fix)
    if kind.multiple > 1 and value % kind.multiple:
        fix = f"write {setting}={kind.multiple}, or a multiple of it"
        raise UsageError(f"{setting} must be a multiple of {kind.multiple}, not '{text}'", where="--set", fix=fix)
    for key in kind.keys.keys() & value.keys() if kind.keys else ():
        _refuse_option(f"{setting}.{key}", kind.keys[key])
        _checked(key, value[key], str(value[key]), kind.keys[key], setting + "='{\"{name}\": {value}}'")
    return value


def _typed(written: str, name: str, value: str) -> str:
    return written.replace("{name}", name).replace("{value}", value)


def _refuse_option(setting: str, kind: SettingType) -> None:
    if kind.option is not None:
        what = f"{setting} has its own option, which the fit takes into account"
        raise UsageError(what, where="--set", fix=f"write {kind.option}")


def _refuse_choice(setting: str, value: Any, choices: Sequence[str] | None) -> None:
    if value is not None and choices and value not in choices:
        what = f"'{value}' is not a {setting} that this engine and the fit support"
        raise UsageError(what, where="--set", fix=did_you_mean(str(value), choices))


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not value.startswith("-") and value.isprintable()


def _is_address(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return _HOST_NAME.fullmatch(value) is not None
    return True


# For each type: the check, its description in errors, and an example.
_TYPES: Mapping[str, tuple[Callable[[Any], bool], str, str]] = {
    "switch": (lambda value: isinstance(value, bool), "true or false", "true or =false"),
    "whole": (_is_whole, "an integer of at least 1", "64"),
    "number": (_is_number, "a number of at least 0", "4"),
    "share": (_is_share, "a fraction greater than 0 and at most 1", "0.9"),
    "word": (_is_word, "a word", "NAME"),
    "address": (_is_address, "a host name or IP address", "127.0.0.1"),
    "block": (lambda value: isinstance(value, dict), "a mapping", "'{\"key\": 1}'"),
}


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

    def record(self) -> LaunchSetting:
        """Return the setting for serve.json."""
        return LaunchSetting(
            setting=self.name, flag=self.flag, value=self.value, reason=self.reason, source=self.source
        )


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
