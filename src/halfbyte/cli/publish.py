"""The `halfbyte publish` command, with deferred imports."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.cli.usage import Command
from halfbyte.errors import CheckFailedError, InterruptedRunError
from halfbyte.ui.console import Bar, Column, Output
from halfbyte.ui.escape import pasted
from halfbyte.ui.units import size

if TYPE_CHECKING:
    from halfbyte.publish.hub.hub import Arrived, Say, Target
    from halfbyte.publish.hub.run import Prepared
    from halfbyte.publish.hub.staging import Sent

_BRANCH = "main"


@click.command("publish", cls=Command, example="halfbyte publish OUT my-org/Kimi-K2.6-NVFP4 --dry-run")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.argument("repo", metavar="REPO")
@click.option("--dry-run", is_flag=True, help="Check and list the files to upload, without network access.")
@click.option("--private", is_flag=True, help="Create private repositories.")
@click.option("--gated", type=click.Choice(["auto", "manual"]), help="Gate access: granted automatically or manually.")
@click.option("--traces", metavar="DATASET_REPO", help="Upload probe traces and pruning artifacts to this dataset.")
@click.option("--revision", metavar="BRANCH", default=_BRANCH, show_default=True, help="Branch; created if missing.")
@click.option("-m", "--message", metavar="TEXT", help="Commit message.  [default: the plan's fingerprint]")
@click.option("--force", is_flag=True, help="Publish without ACCEPT. The card must say so.")
@click.pass_obj
def publish_command(out: Output, out_folder: Path, repo: str, **choice: Any) -> None:
    """Check OUT and upload it to REPO on the Hub.

    REPO is organization/name. Evidence is uploaded without this machine's paths; OUT is not changed. Run the same
    command again to resume. The token comes from HF_TOKEN or `hf auth login`.
    """
    from halfbyte.cli.hash_progress import hash_output, watched
    from halfbyte.publish.hub.hub import check_branch, check_name
    from halfbyte.publish.hub.run import prepare

    check_name(repo)
    check_branch(choice["revision"])
    if choice["traces"] is not None:
        check_name(choice["traces"], "--traces")
    hash_output(out, out_folder)
    with out.progress("checking the checkpoint") as bar:
        prepared = prepare(
            out_folder, repo, traces=choice["traces"], force=choice["force"], watch=watched(bar, "hashed")
        )
    out.verdicts([check.sentence() for check in prepared.checks])
    if prepared.refused:
        if out.as_json:
            out.facts(_as_dict(repo, prepared, choice), [])
        what = f"{len(prepared.refused)} check{'s block' if len(prepared.refused) > 1 else ' blocks'} publishing"
        raise CheckFailedError(what, where=str(out_folder), fix="fix each ✗ above; nothing was uploaded")
    if choice["dry_run"]:
        return _show(out, out_folder, repo, prepared, choice)
    return _send(out, repo, prepared, choice)


def _show(out: Output, folder: Path, repo: str, prepared: Prepared, choice: dict[str, Any]) -> None:
    if out.as_json:
        out.facts(_as_dict(repo, prepared, choice), [])
        return
    rows = [{"file": file.name, "size": size(file.nbytes), "to": repo} for file in prepared.model]
    rows += [{"file": file.name, "size": size(file.nbytes), "to": choice["traces"]} for file in prepared.traces]
    out.table(rows, [Column("file", "file"), Column("size", "size", number=True), Column("to", "to")])
    out.note(
        f"would upload {_total(prepared.model)} to {repo}; {len(prepared.stays)} files stay here; nothing was uploaded"
    )
    out.hint(" ".join(["halfbyte publish", pasted(folder), repo, *_typed(choice)]))


def _typed(choice: dict[str, Any]) -> list[str]:
    """Return the options except --dry-run, as words of a shell command."""
    flags = [f"--{name}" for name in ("force", "private") if choice[name]]
    options = {name: choice[name] for name in ("gated", "traces", "revision", "message") if choice[name] is not None}
    if options["revision"] == _BRANCH:
        del options["revision"]
    return [*flags, *(word for name, value in options.items() for word in (f"--{name}", shlex.quote(value)))]


def _send(out: Output, repo: str, prepared: Prepared, choice: dict[str, Any]) -> None:
    from halfbyte.publish.hub.hub import Target, upload

    plan = _plan(prepared)
    message = choice["message"] or f"halfbyte: plan {plan}"
    private: bool = choice["private"]
    arrived: list[Arrived] = []
    targets: list[tuple[Sequence[Sent], Target]] = []
    if prepared.traces:
        targets.append((prepared.traces, Target(choice["traces"], "dataset", private=private, message=message)))
    model = Target(repo, revision=choice["revision"], private=private, gated=choice["gated"], message=message)
    targets.append((prepared.model, model))
    try:
        for files, target in targets:
            with out.progress(f"uploading to {target.repo}") as bar:
                arrived.append(upload(files, target, _upload_progress(bar)))
    except KeyboardInterrupt:
        fix = "run the same command to resume; uploaded files are skipped"
        raise InterruptedRunError("interrupted; the upload is not complete", where=repo, fix=fix) from None
    lines = [
        (done.address, f"uploaded {done.sent} files ({size(done.sent_nbytes)}), {done.there} already present")
        for done in arrived
    ]
    value = [{"repo": d.address, "sent": d.sent, "nbytes": d.sent_nbytes, "there": d.there} for d in arrived]
    out.facts({"repositories": value}, lines)
    for done in arrived:
        if done.others:
            out.note(
                f"{done.address} also contains {len(done.others)} files from elsewhere: {', '.join(done.others[:3])}"
            )
    out.hint(f"hf download {repo} --local-dir FOLDER && halfbyte verify FOLDER")


def _upload_progress(bar: Bar) -> Say:
    """Return the callback that shows an upload's files, bytes and waits."""
    last = (0, 0)

    def show(line: str, done: int, total: int) -> None:
        nonlocal last
        last = (done, total) if total >= 0 else last
        bar.step(f"{line}  {size(last[0])} of {size(last[1])}" if total >= 0 else line, *last)

    return show


def _plan(prepared: Prepared) -> str:
    import json

    record = next(file for file in prepared.model if file.name.endswith("/provenance.json"))
    return str(json.loads(record.read())["plan"])


def _total(files: Sequence[Sent]) -> str:
    return f"{len(files)} files, {size(sum(file.nbytes for file in files))}"


def _as_dict(repo: str, prepared: Prepared, choice: dict[str, Any]) -> dict[str, Any]:
    """Return the `--json` output."""
    sent = [{"file": f.name, "nbytes": f.nbytes, "sha256": f.sha256, "to": repo} for f in prepared.model]
    sent += [{"file": f.name, "nbytes": f.nbytes, "sha256": f.sha256, "to": choice["traces"]} for f in prepared.traces]
    checks = [{"level": check.level, "text": check.text, "fix": check.fix} for check in prepared.checks]
    return {"checks": checks, "files": sent, "stays": list(prepared.stays)}
