"""Parse `--set name=value` and check each value against its type in setting_types.yaml.

An unchecked value would make the engine fail minutes later, or a flag consume the next argument.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.recipe.strict_yaml import parse_value
from halfbyte.serve.knowledge import Engine, SettingType, setting_types
from halfbyte.ui.suggest import did_you_mean

ENVIRONMENT = "env."  # before the name of a variable in --set
# Names are written into scripts unquoted, so other characters would be executed by the shell.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Variables of the generated scripts, and variables that are read-only in bash.
_OF_THE_SCRIPT = frozenset(("MODEL", "PORT", "default_model", "arguments"))
_OF_BASH = frozenset(("UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"))
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)


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
