"""The command `halfbyte publish`; what it needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.errors import CheckFailedError, InterruptedRunError
from halfbyte.terminal.console import Bar, Column, Output
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.units import size
from halfbyte.terminal.usage import Command

if TYPE_CHECKING:
    from halfbyte.publish.upload.hub import Arrived, Say, Target
    from halfbyte.publish.upload.run import Prepared
    from halfbyte.publish.upload.staging import Sent


@click.command("publish", cls=Command)
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.argument("repo", metavar="REPO")
@click.option("--dry-run", is_flag=True, help="Only look, and list what would be sent; no request is made.")
@click.option("--private", is_flag=True, help="Make the repositories private.")
@click.option("--gated", type=click.Choice(["auto", "manual"]), help="Let readers ask for access; who grants it.")
@click.option("--traces", metavar="DATASET_REPO", help="Send probe traces and pruning artifacts to this dataset.")
@click.option("--revision", metavar="BRANCH", default="main", show_default=True, help="The branch; made if not there.")
@click.option("-m", "--message", metavar="TEXT", help="The commit's message.  [default: the plan's fingerprint]")
@click.option("--force", is_flag=True, help="Publish what was not accepted; the card must say so.")
@click.pass_obj
def publish_command(out: Output, out_folder: Path, repo: str, **choice: Any) -> None:
    """Send the checkpoint OUT to the repository REPO (organisation/name) on the Hub, after looking at all of it.

    Evidence is sent without this machine's paths; OUT itself is not changed. Run the same command again to resume.
    The token comes from HF_TOKEN or `hf auth login`.
    """
    from halfbyte.publish.show_hashing import watched  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.publish.upload.hub import check_branch, check_name  # noqa: PLC0415
    from halfbyte.publish.upload.run import prepare  # noqa: PLC0415

    check_name(repo)
    check_branch(choice["revision"])
    if choice["traces"] is not None:
        check_name(choice["traces"], "--traces")
    with out.progress() as bar:
        found = prepare(out_folder, repo, traces=choice["traces"], force=choice["force"], watch=watched(bar, "hashed"))
    out.verdicts([check.sentence() for check in found.checks])
    if found.refused:
        if out.as_json:
            out.facts(_as_dict(repo, found, choice), [])
        what = f"{len(found.refused)} thing{'s stand' if len(found.refused) > 1 else ' stands'} against publishing it"
        raise CheckFailedError(what, where=str(out_folder), fix="do what each ✗ says; nothing was sent")
    if choice["dry_run"]:
        return _show(out, out_folder, repo, found, choice)
    return _send(out, repo, found, choice)


def _show(out: Output, folder: Path, repo: str, found: Prepared, choice: dict[str, Any]) -> None:
    if out.as_json:
        out.facts(_as_dict(repo, found, choice), [])
        return
    rows = [{"file": file.name, "size": size(file.nbytes), "to": repo} for file in found.model]
    rows += [{"file": file.name, "size": size(file.nbytes), "to": choice["traces"]} for file in found.traces]
    out.table(rows, [Column("file", "file"), Column("size", "size", number=True), Column("to", "to")])
    out.note(f"{_total(found.model)} would be sent to {repo}; {len(found.stays)} files stay here; nothing was sent")
    out.hint(f"halfbyte publish {pasted(folder)} {repo}")


def _send(out: Output, repo: str, found: Prepared, choice: dict[str, Any]) -> None:
    from halfbyte.publish.upload.hub import Target, upload  # noqa: PLC0415

    plan = _plan(found)
    message = choice["message"] or f"halfbyte: plan {plan}"
    private: bool = choice["private"]
    arrived: list[Arrived] = []
    targets: list[tuple[Sequence[Sent], Target]] = []
    if found.traces:
        targets.append((found.traces, Target(choice["traces"], "dataset", private=private, message=message)))
    model = Target(repo, revision=choice["revision"], private=private, gated=choice["gated"], message=message)
    targets.append((found.model, model))
    try:
        for files, target in targets:
            with out.progress() as bar:
                arrived.append(upload(files, target, _said(bar)))
    except KeyboardInterrupt:
        fix = "run the same command again: what has arrived is not sent twice"
        raise InterruptedRunError("interrupted; the upload is not complete", where=repo, fix=fix) from None
    lines = [
        (done.address, f"{done.sent} files sent ({size(done.sent_nbytes)}), {done.there} were there already")
        for done in arrived
    ]
    value = [{"repo": d.address, "sent": d.sent, "nbytes": d.sent_nbytes, "there": d.there} for d in arrived]
    out.facts({"repositories": value}, lines)
    for done in arrived:
        if done.others:
            out.note(
                f"{done.address} also holds {len(done.others)} files of another upload: {', '.join(done.others[:3])}"
            )
    out.hint(f"hf download {repo} --local-dir FOLDER && halfbyte verify FOLDER")


def _said(bar: Bar) -> Say:
    """Return what shows an upload: bytes and files, and waits in between."""
    last = (0, 0)

    def say(line: str, done: int, total: int) -> None:
        nonlocal last
        last = (done, total) if total >= 0 else last
        bar.step(f"{line}  {size(last[0])} of {size(last[1])}" if total >= 0 else line, *last)

    return say


def _plan(found: Prepared) -> str:
    import json  # noqa: PLC0415

    record = next(file for file in found.model if file.name.endswith("/provenance.json"))
    return str(json.loads(record.read())["plan"])


def _total(files: Sequence[Sent]) -> str:
    return f"{len(files)} files, {size(sum(file.nbytes for file in files))}"


def _as_dict(repo: str, found: Prepared, choice: dict[str, Any]) -> dict[str, Any]:
    """Return what `--json` prints."""
    sent = [{"file": f.name, "nbytes": f.nbytes, "sha256": f.sha256, "to": repo} for f in found.model]
    sent += [{"file": f.name, "nbytes": f.nbytes, "sha256": f.sha256, "to": choice["traces"]} for f in found.traces]
    checks = [{"level": check.level, "text": check.text, "fix": check.fix} for check in found.checks]
    return {"checks": checks, "files": sent, "stays": list(found.stays)}
