"""The `halfbyte probe` command, with deferred imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from halfbyte.cli.named_values import PROFILE
from halfbyte.cli.number_options import SECONDS
from halfbyte.cli.usage import Command
from halfbyte.errors import CheckFailedError, MachineError
from halfbyte.ui.console import Column, Output


@click.command(
    "probe", cls=Command, example="halfbyte probe http://127.0.0.1:8000 --against http://127.0.0.1:8001 --budget 1h"
)
@click.argument("url", metavar="URL", required=False)
@click.option("--against", metavar="URL2", help="A server to compare with: the source, on the same engine.")
@click.option("--only", metavar="NAME", multiple=True, help="Run only this probe or group; repeatable.")
@click.option("--skip", metavar="NAME", multiple=True, help="Skip this probe or group; repeatable.")
@click.option("--context", metavar="auto|N", default="auto", show_default=True,
              help="Longest prompt in tokens; auto uses the server's limit.")  # fmt: skip
@click.option("--budget", metavar="TIME", help="Time limit, e.g. 90s, 5m, 1h. Runs one probe of every group first.")
@click.option("--profile", metavar="NAME", type=PROFILE, default="kimi", show_default=True,
              help="Question set: kimi or mini.")  # fmt: skip
@click.option("-o", "--out", "folder", metavar="DIR", type=click.Path(path_type=Path), default=Path("probe"),
              show_default=True, help="Folder for probe.jsonl and probe.json.")  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed of questions and sampling."
)
@click.option("--model", metavar="NAME", help="Model name, if a server has several.")
@click.option("--timeout", "timeout_s", type=SECONDS,
              help="Timeout of one request, in seconds.  [default: the profile's]")  # fmt: skip
@click.option("--tool-calls", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="Requests for the tool probes, in the format of the K2 vendor verifier.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="List the probes with their reasons and exit.")
@click.pass_context
def probe_command(ctx: click.Context, listed: bool, **options: Any) -> None:
    """Test the model at URL for faults that benchmarks miss. Exit code 1 if a gate fails.

    Probes long contexts, tool calls, JSON, loops and more. Run the same command again to resume. Code that the model
    writes runs in a sandbox or not at all. API keys come from HALFBYTE_API_KEY or OPENAI_API_KEY.
    """
    out: Output = ctx.obj
    if listed:
        _list(out, options)
        return
    if options["url"] is None:
        raise click.UsageError("missing argument 'URL'", ctx)
    from halfbyte.cli.hash_progress import hash_served
    from halfbyte.probe.kinds import Verdict
    from halfbyte.probe.output import show
    from halfbyte.probe.report import FILE
    from halfbyte.probe.run import Asked, probe_endpoint

    hash_served(out, options["folder"] / FILE)
    report = probe_endpoint(Asked(**options), out)
    show(out, report)
    where = str(options["folder"] / FILE)
    failed, no_answers = (report.counted(verdict, gates=True) for verdict in (Verdict.FAILED, Verdict.BROKEN))
    if failed:
        raise CheckFailedError(f"{failed} gates failed", where=where, fix="see the details above and in probe.jsonl")
    if no_answers:
        fix = "check the server's log, then run the same command again"
        raise MachineError(f"{no_answers} probes got no usable answers", where=where, fix=fix)
    if not report.accepted:
        raise MachineError("no probe passed: all were skipped", where=where, fix="see the reasons above")
    out.note(f"results in {where}")
    if not options["against"]:
        out.hint(f"halfbyte probe {options['url']} --against URL2")


def _list(out: Output, options: dict[str, Any]) -> None:
    from halfbyte.probe.run import chosen

    probes = chosen(options["only"], options["skip"])
    rows = [{"name": probe.name, "group": probe.group, "gate": probe.gate, "reason": probe.reason} for probe in probes]
    out.table(
        rows, [Column("name", "probe"), Column("group", "group"), Column("gate", "gate"), Column("reason", "reason")]
    )
