"""The --then option: commands to run against the server, parsed before the engine starts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from halfbyte.errors import UsageError
from halfbyte.ui.suggest import did_you_mean

URL_COMMANDS = ("probe", "eval", "bench")
_SOME_URL = "http://127.0.0.1:8000"  # placeholder: parsing checks only the form of the URL


class ThenOption(click.Option):
    """An option whose help is built on demand, because it lists the commands of the group."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its help."""
        here = [name for name in URL_COMMANDS if name in commands_beside(ctx)]
        self.help = (
            f"With --run: commands to run once the server is ready ({', '.join(here) or 'none yet'}). "
            "To pass options, repeat --then 'eval --suite mini'."
        )
        return super().get_help_record(ctx)


def commands_beside(ctx: click.Context) -> dict[str, click.Command]:
    """Return the commands of the same group, by name."""
    group = ctx.parent.command if ctx.parent else None
    return dict(group.commands) if isinstance(group, click.Group) else {}


def then_commands(values: Sequence[str], commands: dict[str, click.Command]) -> list[list[str]]:
    """Split the values of --then into commands with their options. Raise on usage errors before the engine starts."""
    parsed: list[list[str]] = []
    for value in values:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise UsageError(f"{error} in {value!r}", where="--then", fix="close the quotation") from None
        plain = words[1:] == [] or "," in words[0]  # a list of names: "probe, eval"
        parsed += [[name.strip()] for name in value.split(",")] if plain else [words]
    for name, *options in parsed:
        _read(name, options, commands)
    return parsed


def _read(name: str, options: list[str], commands: dict[str, click.Command]) -> None:
    """Parse a command's options and check that its data is available."""
    known = [known for known in URL_COMMANDS if known in commands]
    if name not in known:
        fix = did_you_mean(name, known) if known else "use --exec 'COMMAND' with $HALFBYTE_URL"
        raise UsageError(f"'{name}' is not a command that takes a URL", where="--then", fix=fix)
    where = f"--then '{shlex.join([name, *options])}'"
    try:
        context = commands[name].make_context(
            name, [_SOME_URL, *options], parent=click.get_current_context(silent=True)
        )
    except click.exceptions.Exit:
        raise UsageError("this command does not use a server", where=where, fix=f"halfbyte {name} --help") from None
    except click.ClickException as error:
        fix = f"see halfbyte {name} --help"
        raise UsageError(error.format_message().rstrip("."), where=where, fix=fix) from None
    if name == "eval":  # fail before a large model is loaded
        _find_data(context)


def _find_data(context: click.Context) -> None:
    from halfbyte.evaluate.harness import load_harness
    from halfbyte.evaluate.suites import load_suite

    load_harness(load_suite(context.params["suite"]), context.params["data_dir"])
