"""The `halfbyte audit` command."""

from __future__ import annotations

from halfbyte.cli.command import command
from halfbyte.errors import CheckFailedError
from halfbyte.options.check import AuditOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@command("audit", AuditOptions, example="halfbyte audit OUT --against SRC")
def audit_command(out: Output, options: AuditOptions) -> None:
    """Check that OUT matches its plan and that engines will load it correctly. Exit code 1 if not."""
    with out.activity("reading headers") as activity:
        from halfbyte.audit.run import audit, save

        report = audit(
            options.out_folder, against=options.against, sample=options.sample, engine=options.engine, activity=activity
        )
    if out.as_json:
        out.facts(report.record().as_json(), [])
    out.verdicts(report.sentences())
    saved = save(report)  # after the verdicts: a read-only folder can still be audited
    if not report.passed:
        raise CheckFailedError(
            report.summary(), where=str(saved or options.out_folder), fix="follow the fix of each failed check above"
        )
    out.note(f"{report.summary()} in {report.seconds:.1f} s" + (f"; {saved}" if saved else ""))
    pruned = any(finding.check == "prune" for finding in report.findings)  # pruned experts are renumbered
    out_path, source_path = pasted(options.out_folder), pasted(options.against or "SRC")
    if options.against is None:
        out.hint(f"halfbyte audit {out_path} --against SRC")
    elif pruned:
        out.hint(f"halfbyte loops {out_path} --against {source_path}")
    else:
        keep = f" -o {out_path}/halfbyte/compare.json" if saved else ""
        out.hint(f"halfbyte compare {source_path} {out_path} --data DOMAIN=FILE{keep}")
