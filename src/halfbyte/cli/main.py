"""The command line: its commands in sections, the entry point, and the exit code of every error.

Commands import heavy modules when they run, so `halfbyte --help` is instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import click

from halfbyte.cli.audit import audit_command
from halfbyte.cli.bench import bench_command
from halfbyte.cli.calibrate import calibrate_command
from halfbyte.cli.card import card_command
from halfbyte.cli.compare import compare_command
from halfbyte.cli.diff import diff_command
from halfbyte.cli.doctor import doctor_command
from halfbyte.cli.eval import eval_command
from halfbyte.cli.formats import formats_command
from halfbyte.cli.inspect import inspect_command
from halfbyte.cli.loops import loops_command
from halfbyte.cli.plan import plan_command
from halfbyte.cli.probe import probe_command
from halfbyte.cli.prune import prune_command
from halfbyte.cli.publish import publish_command
from halfbyte.cli.quantize import quantize_command
from halfbyte.cli.recipes import recipes_group
from halfbyte.cli.release import release_command
from halfbyte.cli.report import report_command
from halfbyte.cli.serve import serve_command
from halfbyte.cli.status import status_command
from halfbyte.cli.usage import Group, usage_errors
from halfbyte.cli.verify import verify_command
from halfbyte.errors import EXIT_INTERRUPTED, HalfbyteError, MachineError
from halfbyte.machine.os_errors import os_error, out_of_memory_error
from halfbyte.machine.python_path import remove_current_folder
from halfbyte.ui.console import Output
from halfbyte.ui.escape import escape_library_output

EXIT_BUG = 70  # EX_SOFTWARE; 1 means "a check failed"
EXIT_BROKEN_PIPE = 141  # the shell's exit code for SIGPIPE
COMPLETE_VARIABLE = "_HALFBYTE_COMPLETE"

SECTIONS: Mapping[str, Sequence[click.Command]] = {
    "Inspect": (doctor_command, recipes_group, formats_command, inspect_command, plan_command),
    "Make": (calibrate_command, prune_command, quantize_command, status_command),
    "Check": (audit_command, verify_command, diff_command, compare_command, loops_command),
    "Serve and measure": (serve_command, probe_command, eval_command, bench_command),
    "Publish": (card_command, report_command, publish_command, release_command),
}
cli = Group(
    "halfbyte",
    sections=SECTIONS,
    help="Convert trillion-parameter MoE checkpoints to 4 bits and verify the result.",
    example="halfbyte quantize hf://moonshotai/Kimi-K2.6 OUT -r kimi-k2.6-nvfp4-nvidia",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    if COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "halfbyte", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE]))
    remove_current_folder()
    escape_library_output()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def _discard_output(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that Python's flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_closed_streams() -> None:
    """Replace a closed stdout or stderr (`>&-`) by /dev/null."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the end


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    out = Output()
    try:
        with usage_errors(out), cli.make_context("halfbyte", list(argv), obj=out) as ctx:
            cli.invoke(ctx)
        sys.stdout.flush()
    except HalfbyteError as error:
        out.error(error)
        return error.exit_code
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, click.Abort):
        out.error(HalfbyteError("interrupted"))
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output(sys.stdout)
        return EXIT_BROKEN_PIPE
    except OSError as error:  # e.g. stdout on a full disk, a removed folder
        _discard_output(sys.stdout)
        out.error(os_error(error))
        return MachineError.exit_code
    except Exception as error:
        if (lack := out_of_memory_error(error)) is not None:
            out.error(lack)
            return lack.exit_code
        out.trace(error)
        out.error(HalfbyteError("this is a bug in halfbyte", fix="report the traceback above and `halfbyte --version`"))
        return EXIT_BUG
    return 0
