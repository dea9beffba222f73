"""The `halfbyte eval` command, with deferred imports."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from halfbyte.cli.named_values import SUITE
from halfbyte.cli.number_options import SECONDS, FiniteRange
from halfbyte.cli.usage import Command
from halfbyte.errors import CheckFailedError
from halfbyte.ui.console import Column, Output

_FOLDER = click.Path(path_type=Path)


@click.command(
    "eval", cls=Command, example="halfbyte eval http://127.0.0.1:8000 --suite kimi-card --against http://127.0.0.1:8001"
)
@click.argument("url", metavar="URL", required=False)
@click.option("--suite", metavar="NAME", type=SUITE, default="kimi-card", show_default=True,
              help="kimi-card, kimi-card-3shot, mxfp4-card, chat, coding, mini; --list shows all.")  # fmt: skip
@click.option("--against", metavar="URL2", help="Also evaluate this server, and compare item by item.")
@click.option("--baseline", metavar="RESULTS", type=_FOLDER, help="Compare with the results of an earlier run.")
@click.option("-o", "--out", "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
              help="Results folder.  [default: eval-NAME]")  # fmt: skip
@click.option("--data-dir", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Folder with the data sets, instead of the Hub.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), help="Use only the first N items of each task.")
@click.option("--model", metavar="NAME", help="Model name, if a server has several.")
@click.option("--concurrency", type=click.IntRange(1), help="Concurrent requests.  [default: the suite's]")
@click.option("--margin", type=FiniteRange(0, 1, min_open=True, max_open=True), default=0.01, show_default=True,
              help="Non-inferiority margin, as a fraction.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=SECONDS, default=600.0, show_default=True,
              help="Timeout of one request, in seconds.")  # fmt: skip
@click.option("--same-server", is_flag=True,
              help="Resume an earlier run although the server cannot be identified as the same.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="List the suites with their tasks and exit.")
@click.pass_context
def eval_command(ctx: click.Context, listed: bool, **options: Any) -> None:
    """Score the model at URL with lm-evaluation-harness. Exit code 1 if it is worse than the reference.

    Run the same command again to resume: finished requests are not repeated. API keys come from HALFBYTE_API_KEY or
    OPENAI_API_KEY.
    """
    out: Output = ctx.obj
    if listed:
        _list(out)
        return
    if options["url"] is None:
        raise click.UsageError("missing argument 'URL'", ctx)
    from halfbyte.checkpoint.atomic_write import disk_error
    from halfbyte.cli.hash_progress import hash_served
    from halfbyte.evaluate.report import ProgressLines, failure, show
    from halfbyte.evaluate.results import FILE
    from halfbyte.evaluate.run import Options, evaluate

    options["folder"] = options["folder"] or Path(f"eval-{options['suite']}")
    hash_served(out, options["folder"] / FILE)
    try:
        result = evaluate(Options(**options), out, ProgressLines(out))
    except OSError as error:
        raise disk_error(error, options["folder"], "finished requests") from None
    show(out, result)
    problem = failure(result.judged)
    if problem:
        errors = any(task.candidate.errors for task in result.judged)
        more = "; run the same command to retry failed requests" if errors else ""
        fix = f"see the verdicts above and eval.jsonl in that folder{more}"
        raise CheckFailedError(problem, where=str(options["folder"]), fix=fix)
    out.note(f"results in {options['folder']}")
    if not any(task.reference for task in result.judged):
        out.hint(_compare_with(options))


def _list(out: Output) -> None:
    from halfbyte.evaluate.suites import load_suite, suite_names

    suites = [load_suite(name) for name in suite_names()]
    rows = [
        {"name": suite.name, "tasks": ", ".join(task.task for task in suite.tasks), "description": suite.description}
        for suite in suites
    ]
    out.table(rows, [Column("name", "suite"), Column("tasks", "tasks"), Column("description", "description")])


def _compare_with(options: dict[str, Any]) -> str:
    """Return the command that runs the same evaluation on another server and compares it with this run."""
    folder = str(options["folder"])
    words = ["halfbyte", "eval", "URL2", "--suite", options["suite"]]
    for name in ("limit", "concurrency", "data_dir"):
        if options[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    return shlex.join([*words, "-o", f"{folder}-2", "--baseline", folder])
