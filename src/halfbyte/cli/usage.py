"""Parse the command line: global options anywhere, help in sections, and a fix for every usage error."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

import halfbyte
from halfbyte.cli.value_types import NamedValue
from halfbyte.errors import UsageError
from halfbyte.ui.console import Output
from halfbyte.ui.suggest import did_you_mean, nearest


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
    _flag("--json", "as_json", help="Print the result as JSON."),
    _flag("-q", "--quiet", help="Print only the result and errors, no hints."),
    _flag("-v", "--verbose", help="Also show the traceback of an error."),
    _flag("--no-color", help="Disable colors; NO_COLOR=1 does the same."),
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version.",
    ),
)


# Options of other tools (llm-compressor, ModelOpt, vLLM, lm-eval) and their equivalents here. The error suggests the
# first one that the command has. Arguments are in capitals.
_OUT = ("--out", "OUT", "OUT_FOLDER")
_SOURCE = ("SOURCE", "SRC", "OUT", "OUT_FOLDER", "URL")
_RECIPE = ("-r",)
_FOREIGN_OPTIONS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("--scheme", "--quantization", "--quant", "--quantize", "--format", "--qformat", "--quant-format",
                     "--quant-scheme", "--quant-algo", "--preset", "--config", "--method", "--modifier"), _RECIPE),
    **dict.fromkeys(("-o", "--output", "--output-dir", "--output-path", "--out-dir", "--outdir", "--export-path",
                     "--export-dir", "--save-dir", "--save-directory", "--save-path", "--dest"), _OUT),
    **dict.fromkeys(("-m", "--model", "--model-id", "--model-path", "--model-dir", "--checkpoint", "--input", "-i",
                     "--source", "--src", "--url", "--base-url", "--server", "--endpoint"), _SOURCE),
    **dict.fromkeys(("--dataset", "--datasets", "--calib-dataset", "--calib-data", "--calibration-data"), ("--data",)),
    **dict.fromkeys(("--num-samples", "--nsamples", "--calib-size", "--num-calibration-samples"), ("--samples",)),
    **dict.fromkeys(("--max-seq-length", "--max-seq-len", "--seqlen", "--calib-seq"), ("--length",)),
    **dict.fromkeys(("--tensor-parallel-size", "--tp-size", "-tp"), ("--tp",)),
    **dict.fromkeys(("--max-model-len", "--context-length", "--ctx-size"), ("--context",)),
    **dict.fromkeys(("--max-num-seqs", "--max-concurrency", "--num-concurrent", "--batch-size"), ("--concurrency",)),
    **dict.fromkeys(("--gpu", "--gpus", "--hardware"), ("--gpus", "--fit", "--device")),
    **dict.fromkeys(("--fit",), ("--gpus",)),
    **dict.fromkeys(("--task", "--tasks", "--benchmark", "--benchmarks"), ("--suite",)),
    **dict.fromkeys(("--reference", "--ref", "--baseline", "--vs"), ("--against",)),
    **dict.fromkeys(("--workers", "--num-workers", "--jobs", "-j"), ("--threads",)),
    **dict.fromkeys(("--timeout-s", "--request-timeout"), ("--timeout",)),
}  # fmt: skip


class Command(click.Command):
    """A command with the global options, listed separately, and an example in its help."""

    def __init__(self, *args: Any, example: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.example = example

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description, then the example, unwrapped so that it can be copied."""
        super().format_help_text(ctx, formatter)
        if self.example:
            with formatter.section("Example"):
                formatter.write(f"{'':>{formatter.current_indent}}{self.example}\n")

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's parameters, the global options, and --help."""
        *own, last = super().get_params(ctx)
        return [*own, *GLOBAL_OPTIONS, last]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and add the context that click omits when an option has no value."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's options, then the global options."""
        records = [(param, param.get_help_record(ctx)) for param in self.get_params(ctx)]
        shared = (*GLOBAL_OPTIONS, self.get_help_option(ctx))
        own = [record for param, record in records if record and record[1] and param not in shared]
        everywhere = [record for param, record in records if record and param in shared]
        for title, rows in (("Options", own), ("Global options", everywhere)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Group(Command, click.Group):
    """A group that lists its commands in sections and suggests the nearest name for an unknown command."""

    def __init__(
        self,
        name: str,
        *,
        commands: Sequence[click.Command] = (),
        sections: Mapping[str, Sequence[click.Command]] | None = None,
        **options: Any,
    ) -> None:
        self.sections = sections or {"Commands": commands}
        super().__init__(name, commands=[item for section in self.sections.values() for item in section], **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the sections."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, with the full first sentence of every command, wrapped."""
        longest = max(map(len, self.commands))
        for title, section in self.sections.items():
            rows = [((item.name or "").ljust(longest), item.get_short_help_str(10_000)) for item in section]
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands before the options."""
        self.format_commands(ctx, formatter)
        Command.format_options(self, ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command. For an unknown name, raise an error that suggests the nearest one."""
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        paths = {name: path for path in command_paths(self, ctx.command_path) for name in (path, path.split()[-1])}
        meant = nearest(args[0], paths)
        fix = f"did you mean '{paths[meant]}'?" if meant else did_you_mean(args[0], self.commands)
        raise UsageError(f"unknown command '{args[0]}'", where=ctx.command_path, fix=fix)


def command_paths(group: click.Group, prefix: str) -> list[str]:
    """Return the full name of every command below a group."""
    paths: list[str] = []
    for name, command in group.commands.items():
        path = f"{prefix} {name}"
        paths += [path, *(command_paths(command, path) if isinstance(command, click.Group) else [])]
    return paths


def commands_beside(ctx: click.Context) -> dict[str, click.Command]:
    """Return the commands of the same group, by name."""
    parent = ctx.parent.command if ctx.parent else None
    return dict(parent.commands) if isinstance(parent, click.Group) else {}


@contextmanager
def usage_errors(out: Output) -> Generator[None]:
    """Convert click's usage errors to UsageError, with a fix."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError as error:
        out.note(error.format_message())
        raise click.exceptions.Exit(UsageError.exit_code) from None
    except click.UsageError as error:
        raise _converted(error) from error


def _converted(error: click.UsageError) -> UsageError:
    ctx = error.ctx
    where = ctx.command_path if ctx else ""
    fix = f"see '{where} --help'"
    what = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and ctx:
        what = f"unknown option '{error.option_name}'"
        fix = _counterpart(error.option_name, ctx) or did_you_mean(error.option_name, _options(ctx))
    elif isinstance(error, click.BadOptionUsage) and ctx:
        types = [param.type for param in ctx.command.get_params(ctx) if error.option_name in param.opts]
        if types and isinstance(types[0], NamedValue):
            fix = f"use one of {', '.join(types[0].choices())}"
    return UsageError(what[:1].lower() + what[1:], where=where, fix=fix)


def _options(ctx: click.Context) -> list[str]:
    return [name for param in ctx.command.get_params(ctx) for name in param.opts if name.startswith("-")]


def _counterpart(option: str, ctx: click.Context) -> str | None:
    """Return the equivalent of another tool's option: an option or an argument of this command."""
    own = _options(ctx)
    arguments = [param.name for param in ctx.command.params if isinstance(param, click.Argument) and param.name]
    for name in _FOREIGN_OPTIONS.get(option.replace("_", "-"), ()):
        if name in own:
            return f"use '{name}'; see '{ctx.command_path} --help'"
        if name.lower() in arguments:
            pieces = [piece for param in ctx.command.params if isinstance(param, click.Argument)
                      for piece in param.get_usage_pieces(ctx)]  # fmt: skip
            return f"pass it as an argument: {' '.join([ctx.command_path, *pieces])}"
    return None
