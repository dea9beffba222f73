"""Checks before an upload, each with a fix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.output_folder import FOLDER, PLAN
from halfbyte.checkpoint.untrusted_files import json_object, plain_bytes
from halfbyte.errors import CheckpointError
from halfbyte.evidence.audit import Audit
from halfbyte.evidence.fields import mapping
from halfbyte.evidence.folder import KINDS, NOT_MEASURED, Evidence
from halfbyte.evidence.measured_files import changed_file, content
from halfbyte.evidence.plan import PlanSummary
from halfbyte.evidence.provenance import Provenance
from halfbyte.evidence.release import Release
from halfbyte.evidence.verdict import ACCEPT
from halfbyte.publish import contents
from halfbyte.publish.card.source_card import hub_name, read_card, repository_name, unstated
from halfbyte.publish.card.write import evidence_hashes
from halfbyte.publish.contents import CARD, CARD_EVIDENCE, CARD_RECORD, PROVENANCE
from halfbyte.publish.hub.secrets import Leak, local_paths, secrets, telling_host
from halfbyte.publish.hub.staging import (
    MOST_TEXT_NBYTES,
    Sent,
    Staged,
    is_text,
    metadata_text,
)
from halfbyte.publish.report.page import FILE as REPORT
from halfbyte.publish.verify import Verified
from halfbyte.publish.visible_text import visible
from halfbyte.ui.console import Level
from halfbyte.ui.escape import key_variables, pasted

_LICENSE = re.compile(r"(?:licen[cs]e|copying|notice)(?:[-._].*)?", re.IGNORECASE)
_SERVED = re.compile(r"\bvllm serve (\S+)|--model-path (?!/model\b)(\S+)|-v (\./[^\s:]+):/model")
_PLACEHOLDER = re.compile(
    r"Who made this checkpoint is not stated|halfbyte publish OUT REPO|\[More Information Needed\]|<your[ _-][^>]*>"
    r"|\bORG/NAME\b|\bYOUR[_-][A-Z]+\b",
    re.IGNORECASE,
)
_REPORT_TITLE = re.compile(r"<title>(.*): halfbyte report</title>")
_SHOWN = 5  # leaks of one kind; the others are counted
# Files with arbitrary vocabulary, where paths are harmless. They are still searched for secrets.
_VOCABULARY = ("tokenizer.json", "vocab.json", "merges.txt", "tiktoken.model", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check, with a fix if it failed."""

    level: Level
    text: str
    fix: str = ""

    def sentence(self) -> tuple[Level, str]:
        """Return the level and the text to print."""
        text = visible(self.text, keep_paths=True)  # may contain untrusted file names
        return self.level, f"{text}\n{self.fix}" if self.fix else text


def before_hashing(out: Path, repo: str, evidence: Evidence, *, force: bool) -> list[Check]:
    """Check everything that needs no hashes: checkpoint, plan, audit, verdict, card, license and file names."""
    if evidence.get(PlanSummary) is None:  # the other checks require an output of halfbyte
        return [_no_plan(evidence)]
    return [
        *_checkpoint(out),
        *_audit(evidence),
        _verdict(out, evidence, force),
        *_card(out, evidence),
        *_names_of_card(out, repo),
        *_report(out),
        _license(out),
        *_links(out),
        *_names(out),
        _junk(out),
    ]


def of_record(verified: Verified, out: Path) -> Check:
    """Check that the folder contains exactly the files that provenance.json records."""
    if verified.same:
        return Check("good", f"{PROVENANCE} matches all {verified.files} files")
    first = verified.differences[0]
    rest = f", and {len(verified.differences) - 1} more" if len(verified.differences) > 1 else ""
    fix = f"see halfbyte verify {pasted(out)}, then run `halfbyte release` again or remove the extra files"
    return Check("bad", f"{first.file} {first.text}{rest}: the folder does not match {PROVENANCE}", fix)


def of_staged(out: Path, staged: Staged) -> list[Check]:
    """Search every text file, as it will be uploaded, for secrets and local paths."""
    variables, host = key_variables(), telling_host()
    leaked: list[Leak] = []
    paths: list[Leak] = []
    unread: list[str] = []
    for sent in {sent.name: sent for sent in (*staged.model, *staged.traces)}.values():
        if metadata := metadata_text(sent):
            leaked += secrets(f"{sent.name}, metadata", metadata, variables)
            paths += local_paths(f"{sent.name}, metadata", metadata, out, host)
        if not is_text(sent.name):
            continue
        if sent.nbytes > MOST_TEXT_NBYTES:
            unread.append(sent.name)
            continue
        text = sent.read().decode("utf-8", errors="replace")
        leaked += secrets(sent.name, text, variables)
        if _is_ours(sent):
            paths += local_paths(sent.name, text, out, host, mounts=_is_written_here(sent.name))
    revoke = "remove it from the file and revoke the secret, which may have been exposed"
    remove = "regenerate the card (halfbyte card OUT), or remove the path from the file"
    return [
        *(_leaks(leaked, "no secrets in uploaded text files or safetensors metadata", revoke)),
        *(_leaks(paths, "no local paths in the uploaded card, configs, metadata and evidence", remove)),
        *(Check("note", f"{name} is too large to search for secrets; check it manually") for name in unread),
        Check("good", f"local paths are removed from {len(staged.redacted)} evidence files on upload")
        if staged.redacted
        else Check("good", "no evidence file contains local paths"),
    ]


def _is_ours(sent: Sent) -> bool:
    """Whether a text is the card, evidence or a config. The source's documents and model answers may name any path."""
    if contents.kind(sent.name) == "trace":
        return False
    config = sent.name.endswith(".json") and sent.name not in _VOCABULARY
    return _is_written_here(sent.name) or config


def _is_written_here(name: str) -> bool:
    """Whether halfbyte wrote a text on this machine: the card or evidence."""
    return name == CARD or name.startswith(f"{FOLDER}/")


def _leaks(leaks: list[Leak], none: str, fix: str) -> Iterator[Check]:
    if not leaks:
        yield Check("good", none)
    for leak in leaks[:_SHOWN]:
        yield Check("bad", f"{leak.file}, line {leak.line}: {leak.what}", fix)
    if len(leaks) > _SHOWN:
        yield Check("bad", f"and {len(leaks) - _SHOWN} more", fix)


def _checkpoint(out: Path) -> Iterator[Check]:
    parts = contents.half_written(out)
    if parts:
        fix = "wait for the run to finish, or resume it with `halfbyte quantize`"
        yield Check("bad", f"{parts[0]} is incomplete: this checkpoint is not finished", fix)
    try:
        checkpoint = open_checkpoint(out)  # checks index, headers and shards
        stray = checkpoint.stray_shards()
    except CheckpointError as error:
        yield Check("bad", f"the checkpoint is incomplete: {error.what}", error.fix)
        return
    if stray:
        yield Check("bad", f"{stray[0]} is not part of this checkpoint", "remove it from the folder")
    yield Check("good", f"{len(checkpoint.shards)} shards and {len(checkpoint.tensors)} tensors match the index")


def _no_plan(evidence: Evidence) -> Check:
    why = evidence.missing[PlanSummary.kind].why
    if why != NOT_MEASURED:
        fix = "restore the file from a copy, or run `halfbyte quantize` again"
        return Check("bad", f"the plan of this checkpoint is unusable: {why}", fix)
    what = f"the checkpoint was not created by halfbyte: {FOLDER}/{PLAN} is missing"
    return Check("bad", what, "publish the output folder of `halfbyte quantize`")


def _audit(evidence: Evidence) -> Iterator[Check]:
    """Check that the audit passed and no weights changed since; other changed files get a note."""
    audit, plan = evidence.get(Audit), evidence.get(PlanSummary)
    if audit is None:
        missing = evidence.missing[Audit.kind]
        yield Check("bad", f"no valid audit of these weights: {missing.why}", f"run {missing.command}")
        return
    command = Audit.created_by.format(out=pasted(evidence.out))
    if plan is None or audit.plan != plan.fingerprint:
        yield Check("bad", "the audit is for another plan", f"run {command}")
    elif not audit.passed:
        yield Check("bad", "the audit failed", f"fix its findings, then run {command}")
    elif (changed := changed_file(audit.measured_files, content(evidence.out), weights_only=False)) is None:
        yield Check("good", "the audit passed, and no files have changed since")
    else:
        yield Check("good", "the audit passed, and no weights, index or config have changed since")
        what = f"{changed} has changed since the audit, which covers only weights and formats"
        yield Check("note", what, "check that this change is intended")


def _verdict(out: Path, evidence: Evidence, force: bool) -> Check:
    release, plan = evidence.get(Release), evidence.get(PlanSummary)
    verdict = release.verdict if release else None
    again = f"halfbyte release SRC {pasted(out)} -r RECIPE"
    if release is not None and (plan is None or release.plan != plan.fingerprint):
        return Check("bad", "the verdict is for another plan", f"run {again}")
    if verdict == ACCEPT:
        return Check("good", f"the verdict is {ACCEPT}")
    missing = evidence.missing.get(Release.kind)
    why = f" ({missing.why})" if missing is not None and missing.why != NOT_MEASURED else ""
    state = f"the verdict is {verdict}" if verdict else "there is no verdict" + why
    if not force:
        fix = f"run {again}; or publish with --force if the card states the verdict"
        return Check("bad", f"{state}: only {ACCEPT} is published", fix)
    if not _states_verdict(_read(out / CARD), verdict or "not judged"):
        return Check("bad", f"{state}, but the card does not state it", f"run halfbyte card {pasted(out)}")
    return Check("note", f"{state}, and the card states it; published because of --force")


def _states_verdict(card: str, verdict: str) -> bool:
    """Whether a card states a verdict, as `halfbyte card` writes it."""
    return re.search(rf"Verdict:\W*{re.escape(verdict)}\b", card) is not None


def _card(out: Path, evidence: Evidence) -> Iterator[Check]:
    path, write = out / CARD, f"run halfbyte card {pasted(out)}"
    text = _read(path)
    if not text:
        yield Check("bad", "the card (README.md) is missing", write)
        return
    plan, release = evidence.get(PlanSummary), evidence.get(Release)
    fingerprint = plan.fingerprint if plan else None
    if fingerprint is None or fingerprint not in text:
        yield Check("bad", f"the card is for another checkpoint: it does not name the plan {fingerprint}", write)
        return
    changed = _changed_since_card(out, evidence)
    verdict = release.verdict if release else None
    if changed is not None:
        yield Check("bad", f"{changed} changed after the card was written", write)
    elif verdict is not None and not _states_verdict(text, verdict):
        yield Check("bad", f"the card does not state the verdict {verdict}", write)
    else:
        yield Check("good", "the card matches this plan and evidence")
    front, _ = read_card(path)
    if not front.get("license"):
        fix = f"{write} --license NAME, if the source's card names none"
        yield Check("bad", "the card's front matter has no license", fix)
    for field, option in unstated(front):
        yield Check("note", f"the card names no {field}", f"run halfbyte card {pasted(out)} {option}")


def _changed_since_card(out: Path, evidence: Evidence) -> str | None:
    """Return the first evidence file that changed after the card was written.

    A card that is not recorded in card.json was written by hand and is accepted as it is.
    """
    noted: Any = json_object(out / FOLDER / CARD_RECORD).get(CARD_EVIDENCE)
    if not isinstance(noted, dict):
        return None
    now, before = evidence_hashes(evidence), mapping(noted)
    kinds = (kind for kind in now if kind != Provenance.kind and now[kind] != before.get(kind))
    return next((f"{FOLDER}/{KINDS[kind].file}" for kind in kinds), None)


def _names_of_card(out: Path, repo: str) -> Iterator[Check]:
    """Check that the card's title and commands match REPO and that no placeholders are left."""
    text = _read(out / CARD)
    if not text:
        return
    fix = f"run halfbyte card {pasted(out)} --repo {repo}"
    name = repo.rpartition("/")[2]
    checks: list[Check] = []
    _, title = read_card(out / CARD)
    options = mapping(json_object(out / FOLDER / CARD_RECORD), "said")
    if repository_name(title).lower() != name.lower():
        rename = f" --name {name}" if options.get("name") else ""  # an earlier --name is remembered
        what = f"the card's title is '{title}', but the repository's name is '{name}'"
        checks.append(Check("bad", what, fix + rename))
    card_repo = hub_name(options.get("repo"))
    if card_repo is not None and card_repo != repo:
        checks.append(Check("bad", f"the card was written for {card_repo}, not for {repo}", fix))
    models = dict.fromkeys(word for match in _SERVED.finditer(text) for word in match.groups() if word)
    for model in (model for model in models if model not in (repo, f"./{name}")):
        checks.append(Check("bad", f"a command in the card serves '{model}' instead of {repo}", fix))
    placeholder = _PLACEHOLDER.search(text)
    if placeholder is not None:
        checks.append(Check("bad", f"the card has a placeholder: '{placeholder[0]}'", f"{fix} --quantized-by NAME"))
    yield from checks or [Check("good", f"the card's title and commands match {repo}")]


def _report(out: Path) -> Iterator[Check]:
    """Check that the report has the card's title. A release writes the report before the card gets its repository."""
    match = _REPORT_TITLE.search(_read(out / FOLDER / REPORT))
    _, title = read_card(out / CARD)
    if match is not None and title and repository_name(unescape(match[1])) != repository_name(title):
        what = f"the report's title is '{unescape(match[1])}', but the card's is '{title}'"
        yield Check("bad", what, f"run halfbyte report {pasted(out)}")


def _read(path: Path) -> str:
    try:
        return plain_bytes(path).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _license(out: Path) -> Check:
    names = sorted(path.name for path in out.iterdir() if path.is_file() and _LICENSE.fullmatch(path.name))
    if not names:
        update = f"python -m halfbyte.release.write_provenance {pasted(out)} SRC"
        fix = f"copy the source's license file into the folder, since its terms apply to the weights; then run {update}"
        return Check("bad", "there is no license file", fix)
    return Check("good", f"license file: {', '.join(names)}")


def _links(out: Path) -> Iterator[Check]:
    root = out.resolve()
    for name, path in contents.files(out).items():
        if not path.is_symlink():
            continue
        if not path.exists() or not path.resolve().is_relative_to(root):
            yield Check("bad", f"{name} is a symlink to a target outside the folder", "replace it with the file")
        elif path.is_dir():
            yield Check("bad", f"{name} is a symlink to a folder", "replace it with the folder")


def _names(out: Path) -> Iterator[Check]:
    for name in contents.files(out):
        if contents.kind(name) != "local" and not name.isprintable():
            yield Check("bad", f"{name!r} has unprintable characters in its name", "rename or remove it")


def _junk(out: Path) -> Check:
    """List the local files that are not uploaded."""
    stays = [name for name in contents.files(out) if contents.kind(name) == "local" and not name.endswith(".json")]
    shown = ", ".join(stays[:3]) + (f" and {len(stays) - 3} more" if len(stays) > 3 else "")  # noqa: PLR2004
    return Check("good", f"logs and caches are not uploaded: {shown}" if stays else "no logs or caches in the folder")
