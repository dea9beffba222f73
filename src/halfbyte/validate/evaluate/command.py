"""The command `halfbyte eval`; what it needs is imported when it runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from halfbyte.errors import CheckFailedError
from halfbyte.terminal.console import Column, Output
from halfbyte.terminal.number_options import SECONDS, FiniteRange
from halfbyte.terminal.usage import Command

_FOLDER = click.Path(path_type=Path)


@click.command("eval", cls=Command)
@click.argument("url", metavar="URL", required=False)
@click.option("--suite", metavar="NAME", default="kimi-card", show_default=True,
              help="kimi-card, kimi-card-3shot, mxfp4-card, chat, coding, mini; --list has all.")  # fmt: skip
@click.option("--against", metavar="URL2", help="Ask this server the same, and compare item by item.")
@click.option("--baseline", metavar="RESULTS", type=_FOLDER, help="Compare with the folder of an earlier run.")
@click.option("-o", "--out", "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
              help="For the results.  [default: eval-NAME]")  # fmt: skip
@click.option("--data-dir", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The data sets as folders below it, instead of from the Hub.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), help="Only the first items of each task.")
@click.option("--model", metavar="NAME", help="The model's name, where a server has several.")
@click.option("--concurrency", type=click.IntRange(1), help="Requests at once.  [default: the suite's]")
@click.option("--margin", type=FiniteRange(0, 1, min_open=True, max_open=True), default=0.01, show_default=True,
              help="The largest loss that is none, in shares of 1.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=SECONDS, default=600.0, show_default=True,
              help="Seconds for one request.")  # fmt: skip
@click.option("--same-server", is_flag=True,
              help="Go on with an earlier run although the server does not show that it is the same.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="List the suites with their tasks, and ask nothing.")
@click.pass_context
def eval_command(ctx: click.Context, listed: bool, **asked: Any) -> None:
    """Score the model at URL with lm-evaluation-harness, alone or against another. Exit code 1 if it is worse.

    Run the same command again to go on where it ended: finished requests are not repeated. Keys for servers come from
    HALFBYTE_API_KEY or OPENAI_API_KEY.
    """
    out: Output = ctx.obj
    if listed:
        _list(out)
        return
    if asked["url"] is None:
        raise click.UsageError("missing argument 'URL'", ctx)
    from halfbyte.validate.evaluate.progress import ProgressLines  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.validate.evaluate.report import failure, show  # noqa: PLC0415
    from halfbyte.validate.evaluate.run import Asked, evaluate  # noqa: PLC0415
    from halfbyte.write import disk_error  # noqa: PLC0415

    asked["folder"] = asked["folder"] or Path(f"eval-{asked['suite']}")
    try:
        found = evaluate(Asked(**asked), out, ProgressLines(out))
    except OSError as error:
        raise disk_error(error, asked["folder"], "finished requests") from None
    show(out, found)
    problem = failure(found.judged)
    if problem:
        again = any(one.candidate.errors for one in found.judged)
        more = "; the same command asks again for what got no answer" if again else ""
        fix = f"see the sentences above, and eval.jsonl there{more}"
        raise CheckFailedError(problem, where=str(asked["folder"]), fix=fix)
    out.note(f"results in {asked['folder']}")
    if not any(one.reference for one in found.judged):
        out.hint(_compare_with(asked))


def _list(out: Output) -> None:
    from halfbyte.validate.evaluate.suites import load_suite, suite_names  # noqa: PLC0415

    suites = [load_suite(name) for name in suite_names()]
    rows = [
        {"name": one.name, "tasks": ", ".join(task.task for task in one.tasks), "description": one.description}
        for one in suites
    ]
    out.table(rows, [Column("name", "suite"), Column("tasks", "tasks"), Column("description", "what it is")])


def _compare_with(asked: dict[str, Any]) -> str:
    """Return the command that compares another server with this run: asked the same, and written to another folder."""
    folder = str(asked["folder"])
    words = ["halfbyte", "eval", "URL2", "--suite", asked["suite"]]
    for name in ("limit", "concurrency", "data_dir"):
        if asked[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(asked[name])]
    return shlex.join([*words, "-o", f"{folder}-2", "--baseline", folder])
