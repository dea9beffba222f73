"""The `halfbyte probe` command."""

from __future__ import annotations

import click

from halfbyte.cli.command import command
from halfbyte.errors import CheckFailedError, MachineError
from halfbyte.options.server_tests import ProbeOptions
from halfbyte.ui.console import Column, Output


@command(
    "probe", ProbeOptions, example="halfbyte probe http://127.0.0.1:8000 --against http://127.0.0.1:8001 --budget 1h"
)
def probe_command(out: Output, options: ProbeOptions) -> None:
    """Test the model at URL for faults that benchmarks miss. Exit code 1 if a gate fails.

    Probes long contexts, tool calls, JSON, loops and more. Run the same command again to resume. Code that the model
    writes runs in a sandbox or not at all. API keys come from HALFBYTE_API_KEY or OPENAI_API_KEY.
    """
    if options.list:
        _list(out, options)
        return
    if not options.url:
        raise click.UsageError("missing argument 'URL'", click.get_current_context())
    from halfbyte.cli.hash_progress import hash_served
    from halfbyte.probe.output import show
    from halfbyte.probe.probe import Verdict
    from halfbyte.probe.report import FILE
    from halfbyte.probe.run import probe_endpoint

    hash_served(out, options.folder / FILE)
    report = probe_endpoint(options, out)
    show(out, report)
    where = str(options.folder / FILE)
    failed, no_answers = (report.counted(verdict, gates=True) for verdict in (Verdict.FAILED, Verdict.BROKEN))
    if failed:
        raise CheckFailedError(f"{failed} gates failed", where=where, fix="see the details above and in probe.jsonl")
    if no_answers:
        fix = "check the server's log, then run the same command again"
        raise MachineError(f"{no_answers} probes got no usable answers", where=where, fix=fix)
    if not report.accepted:
        raise MachineError("no probe passed: all were skipped", where=where, fix="see the reasons above")
    out.note(f"results in {where}")
    if not options.against:
        out.hint(f"halfbyte probe {options.url} --against URL2")


def _list(out: Output, options: ProbeOptions) -> None:
    from halfbyte.probe.run import chosen

    probes = chosen(options.only, options.skip)
    rows = [{"name": probe.name, "group": probe.group, "gate": probe.gate, "reason": probe.reason} for probe in probes]
    out.table(
        rows, [Column("name", "probe"), Column("group", "group"), Column("gate", "gate"), Column("reason", "reason")]
    )
