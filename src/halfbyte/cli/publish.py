"""The `halfbyte publish` command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from halfbyte.cli.command import command
from halfbyte.errors import CheckFailedError, InterruptedRunError
from halfbyte.options.declare import options_of, to_argv
from halfbyte.options.publish import PublishOptions
from halfbyte.ui.console import Bar, Column, Output
from halfbyte.ui.escape import pasted
from halfbyte.ui.units import size

if TYPE_CHECKING:
    from halfbyte.publish.hub.hub import Arrived, Say, Target
    from halfbyte.publish.hub.run import Prepared
    from halfbyte.publish.hub.staging import Sent


@command("publish", PublishOptions, example="halfbyte publish OUT my-org/Kimi-K2.6-NVFP4 --dry-run")
def publish_command(out: Output, options: PublishOptions) -> None:
    """Check OUT and upload it to REPO on the Hub.

    REPO is organization/name. Evidence is uploaded without this machine's paths; OUT is not changed. Run the same
    command again to resume. The token comes from HF_TOKEN or `hf auth login`.
    """
    from halfbyte.cli.hash_progress import hash_output, watched
    from halfbyte.publish.hub.hub import check_branch, check_name
    from halfbyte.publish.hub.run import prepare

    check_name(options.repo)
    check_branch(options.revision)
    if options.traces is not None:
        check_name(options.traces, "--traces")
    hash_output(out, options.out_folder)
    with out.progress("checking the checkpoint") as bar:
        prepared = prepare(
            options.out_folder, options.repo, traces=options.traces, force=options.force, watch=watched(bar, "hashed")
        )
    out.verdicts([check.sentence() for check in prepared.checks])
    if prepared.refused:
        if out.as_json:
            out.facts(_as_dict(options, prepared), [])
        what = f"{len(prepared.refused)} check{'s block' if len(prepared.refused) > 1 else ' blocks'} publishing"
        raise CheckFailedError(what, where=str(options.out_folder), fix="fix each ✗ above; nothing was uploaded")
    if options.dry_run:
        return _show(out, options, prepared)
    return _send(out, options, prepared)


def _show(out: Output, options: PublishOptions, prepared: Prepared) -> None:
    if out.as_json:
        out.facts(_as_dict(options, prepared), [])
        return
    rows = [{"file": file.name, "size": size(file.nbytes), "to": options.repo} for file in prepared.model]
    rows += [{"file": file.name, "size": size(file.nbytes), "to": options.traces} for file in prepared.traces]
    out.table(rows, [Column("file", "file"), Column("size", "size", number=True), Column("to", "to")])
    stays = f"{len(prepared.stays)} files stay here"
    out.note(f"would upload {_total(prepared.model)} to {options.repo}; {stays}; nothing was uploaded")
    out.hint(" ".join(["halfbyte publish", pasted(options.out_folder), options.repo, *_typed(options)]))


def _typed(options: PublishOptions) -> list[str]:
    """Return the options except --dry-run, as words of a shell command."""
    names = ("force", "private", "gated", "traces", "revision", "message")
    defaults = {name: option.default for name, option in options_of(PublishOptions).items()}
    given = {name: getattr(options, name) for name in names if getattr(options, name) != defaults[name]}
    return [shlex.quote(word) for word in to_argv(PublishOptions, given, names)]


def _send(out: Output, options: PublishOptions, prepared: Prepared) -> None:
    from halfbyte.publish.hub.hub import Target, upload

    plan = _plan(prepared)
    message = options.message or f"halfbyte: plan {plan}"
    arrived: list[Arrived] = []
    targets: list[tuple[Sequence[Sent], Target]] = []
    if prepared.traces and options.traces is not None:
        targets.append((prepared.traces, Target(options.traces, "dataset", private=options.private, message=message)))
    model = Target(
        options.repo, revision=options.revision, private=options.private, gated=options.gated, message=message
    )
    targets.append((prepared.model, model))
    try:
        for files, target in targets:
            with out.progress(f"uploading to {target.repo}") as bar:
                arrived.append(upload(files, target, _upload_progress(bar)))
    except KeyboardInterrupt:
        fix = "run the same command to resume; uploaded files are skipped"
        raise InterruptedRunError("interrupted; the upload is not complete", where=options.repo, fix=fix) from None
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
    out.hint(f"hf download {options.repo} --local-dir FOLDER && halfbyte verify FOLDER")


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


def _as_dict(options: PublishOptions, prepared: Prepared) -> dict[str, Any]:
    """Return the `--json` output."""
    sent = [{"file": f.name, "nbytes": f.nbytes, "sha256": f.sha256, "to": options.repo} for f in prepared.model]
    sent += [{"file": f.name, "nbytes": f.nbytes, "sha256": f.sha256, "to": options.traces} for f in prepared.traces]
    checks = [{"level": check.level, "text": check.text, "fix": check.fix} for check in prepared.checks]
    return {"checks": checks, "files": sent, "stays": list(prepared.stays)}
