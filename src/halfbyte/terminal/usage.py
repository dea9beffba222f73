"""How the command line reads its arguments: global options anywhere, and an answer to what it cannot read."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import click

import halfbyte
from halfbyte.errors import UsageError
from halfbyte.terminal.console import Output
from halfbyte.terminal.suggest import did_you_mean, nearest


def _set_output(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and param.name:
        setattr(ctx.ensure_object(Output), param.name, True)


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Output).text(f"halfbyte {halfbyte.__version__}", {"version": halfbyte.__version__})
        ctx.exit()


def _flag(*names: str, help: str) -> click.Option:
    return click.Option(names, is_flag=True, is_eager=True, expose_value=False, callback=_set_output, help=help)


GLOBAL_OPTIONS: tuple[click.Option, ...] = (
    _flag("--json", "as_json", help="Print the answer as JSON."),
    _flag("-q", "--quiet", help="Only the answer and errors, no hints."),
    _flag("-v", "--verbose", help="Also show the traceback of an error."),
    _flag("--no-color", help="No colours, also on a terminal (as does NO_COLOR=1)."),
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version.",
    ),
)


class Command(click.Command):
    """A command that takes the global options too, and lists them apart from its own."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters, the global ones, and --help."""
        *own, last = super().get_params(ctx)
        return [*own, *GLOBAL_OPTIONS, last]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; click's parser does not say which command an option without its value belongs to."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the own options first, then those that every command has."""
        records = [(param, param.get_help_record(ctx)) for param in self.get_params(ctx)]
        shared = (*GLOBAL_OPTIONS, self.get_help_option(ctx))
        own = [record for param, record in records if record and param not in shared]
        everywhere = [record for param, record in records if record and param in shared]
        for title, rows in (("Options", own), ("Global options", everywhere)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Group(Command, click.Group):
    """A group whose commands are in the order of the work, and that answers a wrong name with the right one."""

    command_class = Command
    group_class = type

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they were written."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands before the options: they are what one looks for."""
        self.format_commands(ctx, formatter)
        Command.format_options(self, ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was meant."""
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        paths = {name: path for path in command_paths(self, ctx.command_path) for name in (path, path.split()[-1])}
        meant = nearest(args[0], paths)
        fix = f"did you mean '{paths[meant]}'?" if meant else did_you_mean(args[0], self.commands)
        raise UsageError(f"there is no command '{args[0]}'", where=ctx.command_path, fix=fix)


def command_paths(group: click.Group, prefix: str) -> list[str]:
    """Return every command below a group as one would type it."""
    paths: list[str] = []
    for name, command in group.commands.items():
        path = f"{prefix} {name}"
        paths += [path, *(command_paths(command, path) if isinstance(command, click.Group) else [])]
    return paths


@contextmanager
def usage_errors(out: Output) -> Generator[None]:
    """Turn click's complaints into ours, with a fix."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError as error:
        out.note(error.format_message())
        raise click.exceptions.Exit(UsageError.exit_code) from None
    except click.UsageError as error:
        raise _ours(error) from error


def _ours(error: click.UsageError) -> UsageError:
    ctx = error.ctx
    where = ctx.command_path if ctx else ""
    fix = f"see '{where} --help'"
    what = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and ctx:
        options = [name for param in ctx.command.get_params(ctx) for name in param.opts if name.startswith("-")]
        what = f"there is no option '{error.option_name}'"
        fix = did_you_mean(error.option_name, options)
    return UsageError(what[:1].lower() + what[1:], where=where, fix=fix)
