"""The `halfbyte eval` command."""

from __future__ import annotations

import shlex
from dataclasses import asdict

import click

from halfbyte.cli.command import command
from halfbyte.errors import CheckFailedError
from halfbyte.options.declare import to_argv
from halfbyte.options.server_tests import EvalOptions
from halfbyte.ui.console import Column, Output


@command(
    "eval", EvalOptions, example="halfbyte eval http://127.0.0.1:8000 --suite kimi-card --against http://127.0.0.1:8001"
)
def eval_command(out: Output, options: EvalOptions) -> None:
    """Score the model at URL with lm-evaluation-harness. Exit code 1 if it is worse than the reference.

    Run the same command again to resume: finished requests are not repeated. API keys come from HALFBYTE_API_KEY or
    OPENAI_API_KEY.
    """
    if options.list:
        _list(out)
        return
    if not options.url:
        raise click.UsageError("missing argument 'URL'", click.get_current_context())
    from halfbyte.checkpoint.atomic_write import disk_error
    from halfbyte.cli.hash_progress import hash_served
    from halfbyte.evaluate.report import ProgressLines, failure, show
    from halfbyte.evaluate.results import FILE
    from halfbyte.evaluate.run import evaluate

    hash_served(out, options.results / FILE)
    try:
        result = evaluate(options, out, ProgressLines(out))
    except OSError as error:
        raise disk_error(error, options.results, "finished requests") from None
    show(out, result)
    problem = failure(result.tasks)
    if problem:
        errors = any(task.candidate.errors for task in result.tasks)
        more = "; run the same command to retry failed requests" if errors else ""
        fix = f"see the verdicts above and eval.jsonl in that folder{more}"
        raise CheckFailedError(problem, where=str(options.results), fix=fix)
    out.note(f"results in {options.results}")
    if not any(task.reference for task in result.tasks):
        out.hint(_compare_with(options))


def _list(out: Output) -> None:
    from halfbyte.evaluate.suites import load_suite, suite_names

    suites = [load_suite(name) for name in suite_names()]
    rows = [
        {"name": suite.name, "tasks": ", ".join(task.task for task in suite.tasks), "description": suite.description}
        for suite in suites
    ]
    out.table(rows, [Column("name", "suite"), Column("tasks", "tasks"), Column("description", "description")])


def _compare_with(options: EvalOptions) -> str:
    """Return the command that runs the same evaluation on another server and compares it with this run."""
    folder = str(options.results)
    same = to_argv(EvalOptions, asdict(options), ("suite", "limit", "concurrency", "data_dir"))
    return shlex.join(["halfbyte", "eval", "URL2", *same, "-o", f"{folder}-2", "--baseline", folder])
