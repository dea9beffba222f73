"""Build a click command from the dataclass that declares its options, and spell the command that the user typed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import click
from click.core import ParameterSource

from halfbyte.cli.usage import Command
from halfbyte.cli.value_types import value_type
from halfbyte.options.declare import Group, Option, declared
from halfbyte.ui.console import Output

Options = TypeVar("Options")


class _Option(click.Option):
    """An option that knows whether the output bytes depend on it."""

    def __init__(self, *args: Any, affects_output: bool, **words: Any) -> None:
        super().__init__(*args, **words)
        self.affects_output = affects_output


def command(
    name: str, model: type[Options], example: str
) -> Callable[[Callable[[Output, Options], Any]], click.Command]:
    """Make a function of the output and its options a command."""

    def decorate(function: Callable[[Output, Options], Any]) -> click.Command:
        def called(**values: Any) -> Any:
            return function(click.get_current_context().obj, _filled(model, values, ""))

        params = list(_parameters(model, ""))
        return Command(name, callback=called, params=params, help=function.__doc__, example=example)

    return decorate


def _parameters(model: type, prefix: str) -> Iterator[click.Parameter]:
    for item in declared(model):
        if isinstance(item, Group):
            yield from _parameters(item.model, f"{prefix}{item.name}_")
        else:
            yield _parameter(item, prefix + item.name)


def _filled(model: type[Options], values: Mapping[str, Any], prefix: str) -> Options:
    """Return the options as an object, from click's flat names."""
    return model(
        **{
            item.name: _filled(item.model, values, f"{prefix}{item.name}_")
            if isinstance(item, Group)
            else values[prefix + item.name]
            for item in declared(model)
        }
    )


def _parameter(option: Option, name: str) -> click.Parameter:
    row = option.declaration
    if not row.flags:
        words: dict[str, Any] = {} if row.required else {"default": option.default}
        return click.Argument([name], metavar=row.metavar, required=row.required, type=value_type(option), **words)
    words = {"help": row.help, "metavar": row.metavar, "required": row.required}
    if not row.required:
        words["default"] = option.default
        words["show_default"] = option.default not in (None, ()) and option.default is not False
    if option.type is bool:
        words["is_flag"] = True
    else:
        words |= {"type": value_type(option), "multiple": option.multiple}
    if row.bare is not None:
        words |= {"is_flag": False, "flag_value": row.bare}
    return _Option([*row.flags, name], affects_output=row.affects_output, **words)


def typed_command(places: Mapping[str, str]) -> list[str]:
    """Return the words of the running command, with its arguments replaced by `places`.

    plan.json contains them. Options that do not affect the output bytes are omitted, so equal plans give equal files.
    """
    context = click.get_current_context()
    words = ["halfbyte", context.info_name or "", *places.values()]
    for parameter in context.command.params:
        name = parameter.name or ""
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if isinstance(parameter, _Option) and typed and parameter.affects_output:
            words += _words(parameter, context.params.get(name))
    return words


def _words(option: click.Option, value: Any) -> list[str]:
    if option.is_flag:
        return [option.opts[-1] if value else (option.secondary_opts or option.opts)[-1]]
    values = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else [value]
    return [word for item in values for word in (_spelled(option), str(item))]


def _spelled(option: click.Option) -> str:
    """Return an option's documented spelling: -r, but --keep."""
    return "-r" if "-r" in option.opts else next(name for name in option.opts if name.startswith("--"))
