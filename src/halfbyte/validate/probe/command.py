"""The command `halfbyte probe`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from halfbyte.errors import CheckFailedError, MachineError
from halfbyte.terminal.console import Column, Output
from halfbyte.terminal.number_options import SECONDS
from halfbyte.terminal.usage import Command


@click.command("probe", cls=Command)
@click.argument("url", metavar="URL", required=False)
@click.option("--against", metavar="URL2", help="A server to compare with: the source, on the same engine.")
@click.option("--only", metavar="NAME", multiple=True, help="This probe or group of probes; may be given again.")
@click.option("--skip", metavar="NAME", multiple=True, help="Not this probe or group of probes; may be given again.")
@click.option("--context", metavar="auto|N", default="auto", show_default=True,
              help="The longest prompt in tokens; auto: what the server tells.")  # fmt: skip
@click.option("--budget", metavar="TIME", help="What fits into 90s, 5m, 1h, the cheapest first.")
@click.option("--profile", metavar="NAME", default="kimi", show_default=True, help="The questions: kimi or mini.")
@click.option("-o", "--out", "folder", metavar="DIR", type=click.Path(path_type=Path), default=Path("probe"),
              show_default=True, help="For probe.jsonl and probe.json.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of questions and of sampling.")
@click.option("--model", metavar="NAME", help="The model's name, where a server has several.")
@click.option("--timeout", "timeout_s", type=SECONDS,
              help="Seconds for one request.  [default: the profile's]")  # fmt: skip
@click.option("--tool-calls", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="Requests for the tool probes, as the K2 vendor verifier has them.")  # fmt: skip
@click.option("--list", "listed", is_flag=True, help="List the probes with their reasons, and ask nothing.")
@click.pass_context
def probe_command(ctx: click.Context, listed: bool, **asked: Any) -> None:
    """Ask the model at URL what benchmarks miss: can agents live on this endpoint? Exit code 1 if a gate fails.

    Run the same command again to go on where it ended. Code of the model runs in a sandbox or not at all. Keys for
    servers come from HALFBYTE_API_KEY or OPENAI_API_KEY.
    """
    out: Output = ctx.obj
    if listed:
        _list(out, asked)
        return
    if asked["url"] is None:
        raise click.UsageError("missing argument 'URL'", ctx)
    from halfbyte.validate.probe.kinds import Verdict  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.validate.probe.report import FILE  # noqa: PLC0415
    from halfbyte.validate.probe.run import Asked, probe_endpoint  # noqa: PLC0415
    from halfbyte.validate.probe.table import show  # noqa: PLC0415

    report = probe_endpoint(Asked(**asked), out)
    show(out, report)
    where = str(asked["folder"] / FILE)
    failed, no_answers = (report.counted(one, gates=True) for one in (Verdict.FAILED, Verdict.BROKEN))
    if failed:
        raise CheckFailedError(f"{failed} gates failed", where=where, fix="see the texts above, and probe.jsonl there")
    if no_answers:
        fix = "look at the server's log, then run the same command again"
        raise MachineError(f"{no_answers} probes got no usable answers", where=where, fix=fix)
    if not report.accepted:
        raise MachineError("no probe passed: all were skipped", where=where, fix="see the reasons above")
    out.note(f"results in {where}")
    if not asked["against"]:
        out.hint(f"halfbyte probe {asked['url']} --against URL2")


def _list(out: Output, asked: dict[str, Any]) -> None:
    from halfbyte.validate.probe.run import chosen  # noqa: PLC0415

    probes = chosen(asked["only"], asked["skip"])
    rows = [{"name": one.name, "group": one.group, "gate": one.gate, "reason": one.reason} for one in probes]
    out.table(
        rows, [Column("name", "probe"), Column("group", "group"), Column("gate", "gate"), Column("reason", "why")]
    )
