"""The command that the user typed, with SRC and OUT for its folders. Model cards print it under Reproduction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import click
from click.core import ParameterSource

# Options that do not affect the output bytes.
_HOW = ("ray", "threads", "device_memory", "cache", "cache_dir", "verify", "push_repo", "evict", "no_loops", "prompts")


def typed_command(places: Mapping[str, str]) -> list[str]:
    """Return the words of the running command, with its arguments replaced by `places`.

    plan.json contains them. Options that do not affect the output bytes are omitted, so equal plans give equal files.
    """
    context = click.get_current_context()
    words = ["halfbyte", context.info_name or "", *places.values()]
    for parameter in context.command.params:
        name = parameter.name or ""
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if isinstance(parameter, click.Option) and typed and name not in _HOW:
            words += _option(parameter, context.params.get(name))
    return words


def _option(option: click.Option, value: Any) -> list[str]:
    if option.is_flag:
        return [option.opts[-1] if value else (option.secondary_opts or option.opts)[-1]]
    values = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else [value]
    return [word for item in values for word in (_spelled(option), str(item))]


def _spelled(option: click.Option) -> str:
    """Return an option's documented spelling: -r, but --keep."""
    return "-r" if "-r" in option.opts else next(name for name in option.opts if name.startswith("--"))
