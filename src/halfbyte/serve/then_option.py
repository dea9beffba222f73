"""The option --then: commands that get the URL, by name or with options of their own, all read before the start."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from halfbyte.errors import UsageError
from halfbyte.terminal.suggest import did_you_mean

URL_COMMANDS = ("probe", "eval", "bench")  # those that take a URL
_SOME_URL = "http://127.0.0.1:8000"  # the real one is known later; commands only look at its form


class ThenOption(click.Option):
    """An option whose help is written when it is asked for: the commands beside it are known only then."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and what it takes."""
        here = [name for name in URL_COMMANDS if name in commands_beside(ctx)]
        self.help = (
            f"With --run: commands that get the URL once it answers ({', '.join(here) or 'none yet'}); "
            "with options as in --then 'eval --suite mini', once for each."
        )
        return super().get_help_record(ctx)


def commands_beside(ctx: click.Context) -> dict[str, click.Command]:
    """Return the commands of the group that a command belongs to, by name."""
    group = ctx.parent.command if ctx.parent else None
    return dict(group.commands) if isinstance(group, click.Group) else {}


def then_commands(asked: Sequence[str], commands: dict[str, click.Command]) -> list[list[str]]:
    """Return the commands with their options; one that would fail for what was typed is an error before the start."""
    found: list[list[str]] = []
    for one in asked:
        try:
            words = shlex.split(one)
        except ValueError as error:
            raise UsageError(f"{error} in {one!r}", where="--then", fix="close the quotation") from None
        plain = words[1:] == [] or "," in words[0]  # a list of names: "probe, eval"
        found += [[name.strip()] for name in one.split(",")] if plain else [words]
    for name, *options in found:
        _read(name, options, commands)
    return found


def _read(name: str, options: list[str], commands: dict[str, click.Command]) -> None:
    """Let a command read its options as it will, and look for what it needs."""
    known = [known for known in URL_COMMANDS if known in commands]
    if name not in known:
        fix = did_you_mean(name, known) if known else "use --exec 'COMMAND', which gets HALFBYTE_URL"
        raise UsageError(f"this halfbyte has no command '{name}' that takes a URL", where="--then", fix=fix)
    where = f"--then '{shlex.join([name, *options])}'"
    try:
        context = commands[name].make_context(
            name, [_SOME_URL, *options], parent=click.get_current_context(silent=True)
        )
    except click.exceptions.Exit:
        raise UsageError("it only prints and asks no server", where=where, fix=f"halfbyte {name} --help") from None
    except click.ClickException as error:
        fix = f"see halfbyte {name} --help"
        raise UsageError(error.format_message().rstrip("."), where=where, fix=fix) from None
    if name == "eval":  # before a model of a terabyte is loaded for data that is not there
        _find_data(context)


def _find_data(context: click.Context) -> None:
    from halfbyte.validate.evaluate.harness import load_harness  # noqa: PLC0415 - lm-eval is heavy
    from halfbyte.validate.evaluate.suites import load_suite  # noqa: PLC0415

    load_harness(load_suite(context.params["suite"]), context.params["data_dir"])
