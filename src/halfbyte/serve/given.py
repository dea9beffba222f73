"""`--set name=value`: each value has the type that its setting has in setting_types.yaml, or is refused in a sentence.

A value that nobody checks becomes a script whose engine fails minutes later, or a flag that swallows the next one.
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
from halfbyte.terminal.suggest import did_you_mean

ENVIRONMENT = "env."  # before the name of a variable in --set
# A name goes into a script without quotes: anything else there would be run by the shell.
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Variables that a script of ours has itself, and those that bash does not let anyone set.
_OF_THE_SCRIPT = frozenset(("MODEL", "PORT", "default_model", "arguments"))
_OF_BASH = frozenset(("UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO"))
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)


def overrides(given: Sequence[str], name: str, engine: Engine) -> dict[str, Any]:
    """Read what `--set` was given; a name that the engine has no flag for and a value of another type are refused."""
    found: dict[str, Any] = {}
    for text in given:
        setting, equals, value = text.partition("=")
        setting = setting.strip()
        if not equals or not setting:
            fix = "write name=value, as in kv_cache_dtype=fp8"
            raise UsageError(f"'{text}' does not set anything", where="--set", fix=fix)
        if setting.startswith(ENVIRONMENT):
            found[setting] = _variable(setting, value)
            continue
        setting = setting.replace("-", "_")
        kind = setting_types().get(setting)
        if kind is not None:
            _refuse_option(setting, kind)
        if kind is None or setting not in engine.flags:
            what = f"{engine.title} has no setting '{setting}'"
            raise UsageError(what, where="--set", fix=did_you_mean(setting, engine.flags))
        found[setting] = _checked(setting, parse_value(value, f"--set {text}"), value, kind)
        _refuse_choice(setting, found[setting], kind.choices.get(name) or kind.choices.get(engine.flags_of or ""))
    return found


def _variable(setting: str, value: str) -> str:
    name = setting.removeprefix(ENVIRONMENT)
    if not _VARIABLE.fullmatch(name):
        fix = "write env.NAME=value, with letters, digits and _ in the name"
        raise UsageError(f"{name!r} is no name of a variable", where="--set", fix=fix)
    if name in _OF_THE_SCRIPT:
        what = f"{name} is a variable of the script itself"
        raise UsageError(what, where="--set", fix="give MODEL or PORT where you start the script, the rest as settings")
    if name in _OF_BASH:
        raise UsageError(f"bash lets nobody set {name}", where="--set", fix="leave it out")
    if "\0" in value:
        raise UsageError(f"the value of {name} has a NUL in it", where="--set", fix="take it out")
    return value


def _checked(setting: str, value: Any, text: str, kind: SettingType, written: str = "{name}={value}") -> Any:
    """Return the value if it is what its setting may be; `written` is how such a value is typed."""
    if value is None:
        if kind.needed:
            fix = f"write {_typed(written, setting, 'VALUE')}, or leave it out for ours"
            raise UsageError(f"the fit counts with {setting}, so that it needs a value", where="--set", fix=fix)
        return None
    holds, meant, example = _TYPES[kind.type]
    if not holds(value):
        fix = f"write {_typed(written, setting, kind.example or example)}"
        raise UsageError(f"{setting} is {meant}, not '{text}'", where="--set", fix=fix)
    if kind.multiple > 1 and value % kind.multiple:
        fix = f"write {setting}={kind.multiple}, or a multiple of it"
        raise UsageError(f"{setting} is a multiple of {kind.multiple}, not '{text}'", where="--set", fix=fix)
    for key in kind.keys.keys() & value.keys() if kind.keys else ():
        _refuse_option(f"{setting}.{key}", kind.keys[key])
        _checked(key, value[key], str(value[key]), kind.keys[key], setting + "='{\"{name}\": {value}}'")
    return value


def _typed(written: str, name: str, value: str) -> str:
    return written.replace("{name}", name).replace("{value}", value)


def _refuse_option(setting: str, kind: SettingType) -> None:
    if kind.option is not None:
        what = f"{setting} has an option of its own, which the fit counts with"
        raise UsageError(what, where="--set", fix=f"write {kind.option}")


def _refuse_choice(setting: str, value: Any, choices: Sequence[str] | None) -> None:
    if value is not None and choices and value not in choices:
        what = f"'{value}' is no {setting} that this engine takes and the fit can count with"
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


# For each type: whether a value is of it, how it is called, and an example.
_TYPES: Mapping[str, tuple[Callable[[Any], bool], str, str]] = {
    "switch": (lambda value: isinstance(value, bool), "a switch", "true or =false"),
    "whole": (_is_whole, "a whole number of 1 or more", "64"),
    "number": (_is_number, "a number of 0 or more", "4"),
    "share": (_is_share, "a share, more than 0 and at most 1", "0.9"),
    "word": (_is_word, "a word", "NAME"),
    "address": (_is_address, "the address or name of a machine", "127.0.0.1"),
    "block": (lambda value: isinstance(value, dict), "a block of keys and values", "'{\"key\": 1}'"),
}
