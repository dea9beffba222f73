"""What must be true before a byte is sent, each in a sentence with what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.errors import CheckpointError
from halfbyte.folders import FOLDER
from halfbyte.publish import contents
from halfbyte.publish.contents import CARD, PROVENANCE
from halfbyte.publish.evidence import NOT_MEASURED, PLACES, Evidence
from halfbyte.publish.report.visible import visible
from halfbyte.publish.upload.secrets import Leak, local_paths, secrets, telling_host
from halfbyte.publish.upload.staging import MOST_TEXT_NBYTES, Sent, Staged, is_text, metadata_text
from halfbyte.publish.verify import Verified
from halfbyte.source.checkpoint import open_checkpoint
from halfbyte.source.foreign import plain_bytes
from halfbyte.terminal.console import Level
from halfbyte.terminal.keys import key_variables
from halfbyte.terminal.pasted import pasted

ACCEPT = "ACCEPT"
_LICENCE = re.compile(r"(?:licen[cs]e|copying|notice)(?:[-._].*)?", re.IGNORECASE)
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---\r?\n", re.DOTALL)
_SHOWN = 5  # leaks of one kind; the rest is counted
# Vocabulary is text of the world: paths in it are nobody's. Secrets are looked for there as everywhere.
_VOCABULARY = ("tokenizer.json", "vocab.json", "merges.txt", "tiktoken.model", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, and what to do where it is not so."""

    level: Level
    text: str
    fix: str = ""

    def sentence(self) -> tuple[Level, str]:
        """Return what is shown."""
        text = visible(self.text, keep_paths=True)  # it may name a file that a stranger named
        return self.level, f"{text}\n{self.fix}" if self.fix else text


def before_hashing(out: Path, evidence: Evidence, *, force: bool) -> list[Check]:
    """Check what needs no hash: the checkpoint, its audit, verdict, card and licence, and what lies around."""
    return [
        *_checkpoint(out),
        _audit(evidence),
        _verdict(out, evidence, force),
        *_card(out, evidence),
        _licence(out),
        *_links(out),
        *_names(out),
        _junk(out),
    ]


def of_record(found: Verified, out: Path) -> Check:
    """Check that every file is the one that provenance.json has, and none lies there that it has not."""
    if found.same:
        return Check("good", f"{PROVENANCE} has every file: {found.files} of {found.files}")
    first = found.differences[0]
    rest = f", and {len(found.differences) - 1} more" if len(found.differences) > 1 else ""
    fix = (
        f"look at it (halfbyte verify {pasted(out)}), then run `halfbyte release` again, or take away what is not of it"
    )
    return Check("bad", f"{first.file} {first.text}{rest}: the folder is not what {PROVENANCE} recorded", fix)


def of_staged(out: Path, staged: Staged) -> list[Check]:
    """Check every text that is sent, as it is sent, for secrets and for paths of this machine."""
    variables, host = key_variables(), telling_host()
    leaked: list[Leak] = []
    paths: list[Leak] = []
    unread: list[str] = []
    for sent in {sent.name: sent for sent in (*staged.model, *staged.traces)}.values():
        if said := metadata_text(sent):
            leaked += secrets(f"{sent.name}, metadata", said, variables)
            paths += local_paths(f"{sent.name}, metadata", said, out, host)
        if not is_text(sent.name):
            continue
        if sent.nbytes > MOST_TEXT_NBYTES:
            unread.append(sent.name)
            continue
        text = sent.read().decode("utf-8", errors="replace")
        leaked += secrets(sent.name, text, variables)
        if _is_ours(sent):
            paths += local_paths(sent.name, text, out, host, mounts=_is_written_here(sent.name))
    fix = "take it out of the file and make the secret invalid where it comes from: it may have been seen"
    where = "write the card again (halfbyte card OUT), or edit the file: a path of this machine helps nobody elsewhere"
    return [
        *(_leaks(leaked, "no secrets in any text or tensor file's metadata that is sent", fix)),
        *(_leaks(paths, "no paths of this machine in card, configs, metadata and evidence as they are sent", where)),
        *(Check("note", f"{name} is too large to be looked through for secrets: look yourself") for name in unread),
        Check("good", f"paths were taken out of {len(staged.redacted)} evidence files as they are sent")
        if staged.redacted
        else Check("good", "no evidence file needs a path taken out"),
    ]


def _is_ours(sent: Sent) -> bool:
    """Whether a text is the card, evidence or a config: the source's own documents may name any path.

    A trace is made of model answers, which may do so too.
    """
    if contents.kind(sent.name) == "trace":
        return False
    config = sent.name.endswith(".json") and sent.name not in _VOCABULARY
    return _is_written_here(sent.name) or config


def _is_written_here(name: str) -> bool:
    """Whether a text is the card or evidence, which halfbyte wrote on this machine."""
    return name == CARD or name.startswith(f"{FOLDER}/")


def _leaks(found: list[Leak], none: str, fix: str) -> Iterator[Check]:
    if not found:
        yield Check("good", none)
    for leak in found[:_SHOWN]:
        yield Check("bad", f"{leak.file}, line {leak.line}: {leak.what}", fix)
    if len(found) > _SHOWN:
        yield Check("bad", f"and {len(found) - _SHOWN} more of them", fix)


def _checkpoint(out: Path) -> Iterator[Check]:
    parts = contents.half_written(out)
    if parts:
        fix = "wait until its run has ended, or run `halfbyte quantize` again"
        yield Check("bad", f"{parts[0]} is half-written: this checkpoint is not finished", fix)
    try:
        checkpoint = open_checkpoint(out)  # index, headers and shards agree
        stray = checkpoint.stray_shards()
    except CheckpointError as error:
        yield Check("bad", f"the checkpoint is not whole: {error.what}", error.fix)
        return
    if stray:
        yield Check("bad", f"{stray[0]} belongs to no part of this checkpoint", "take it out of the folder")
    yield Check("good", f"{len(checkpoint.shards)} shards and {len(checkpoint.tensors)} tensors, as the index has them")


def _audit(evidence: Evidence) -> Check:
    found = evidence.get("audit")
    if found is None:
        missing = evidence.missing["audit"]
        return Check("bad", f"no audit counts for these weights: {missing.why}", f"run it: {missing.command}")
    plan: Mapping[str, Any] = evidence.get("plan") or {}
    command = PLACES["audit"].command.format(out=pasted(evidence.out))
    if found.get("plan") != plan.get("fingerprint"):
        return Check("bad", "the audit is of another plan", f"run it again: {command}")
    if found.get("passed") is not True:
        return Check("bad", "the audit found something wrong", f"look at it, and make it right: {command}")
    return Check("good", "the audit passed, and no file changed since")


def _verdict(out: Path, evidence: Evidence, force: bool) -> Check:
    release = evidence.get("release")
    verdict = release.get("verdict") if release is not None else None
    plan: Mapping[str, Any] = evidence.get("plan") or {}
    again = f"halfbyte release SRC {pasted(out)} -r RECIPE"
    if release is not None and release.get("plan") != plan.get("fingerprint"):
        return Check("bad", "the verdict is of another plan", f"run it again: {again}")
    if verdict == ACCEPT:
        return Check("good", f"the verdict is {ACCEPT}")
    missing = evidence.missing.get("release")
    why = f" ({missing.why})" if missing is not None and missing.why != NOT_MEASURED else ""
    said = f"the verdict is {verdict}" if isinstance(verdict, str) else "there is no verdict" + why
    if not force:
        return Check("bad", f"{said}: only {ACCEPT} is published", f"{again}; or --force, and the card says so")
    if not _says(_read(out / CARD), verdict if isinstance(verdict, str) else "not judged"):
        return Check("bad", f"{said}, and the card does not say so", f"write it again: halfbyte card {pasted(out)}")
    return Check("note", f"{said}; published by --force, and the card says so")


def _says(card: str, verdict: str) -> bool:
    """Whether a card has the sentence about a verdict, as `halfbyte card` writes it."""
    return re.search(rf"Verdict:\W*{re.escape(verdict)}\b", card) is not None


def _card(out: Path, evidence: Evidence) -> Iterator[Check]:
    path, write = out / CARD, f"write it: halfbyte card {pasted(out)}"
    text = _read(path)
    if not text:
        yield Check("bad", "there is no card (README.md)", write)
        return
    plan: Mapping[str, Any] = evidence.get("plan") or {}
    release: Mapping[str, Any] = evidence.get("release") or {}
    fingerprint = str(plan.get("fingerprint"))
    if fingerprint not in text:
        yield Check("bad", f"the card is not of this checkpoint: it does not name the plan {fingerprint}", write)
        return
    newer = [evidence.path(kind) for kind in evidence.found if kind != "provenance"]
    newer = [found for found in newer if found.stat().st_mtime_ns > path.stat().st_mtime_ns]
    verdict = release.get("verdict")
    if newer:
        name = newer[0].relative_to(out).as_posix()
        yield Check(
            "bad",
            f"the card is older than {name}: it may have other numbers",
            write.replace("write it", "write it again"),
        )
    elif isinstance(verdict, str) and not _says(text, verdict):
        yield Check("bad", f"the card does not say that the verdict is {verdict}", write)
    else:
        yield Check("good", "the card is of this plan, and newer than the evidence")
    front = _FRONT_MATTER.match(text)
    if front is None or re.search(r"^license:[ \t]*\S", front[1], re.MULTILINE) is None:
        yield Check("bad", "the card's front matter names no licence", f"{write}; it takes it from the source's card")


def _read(path: Path) -> str:
    try:
        return plain_bytes(path).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _licence(out: Path) -> Check:
    found = sorted(path.name for path in out.iterdir() if path.is_file() and _LICENCE.fullmatch(path.name))
    if not found:
        again = f"python -m halfbyte.release.write_provenance {pasted(out)} SRC"
        fix = f"copy the source's licence file into the folder, since its terms go with the weights; then: {again}"
        return Check("bad", "there is no licence file", fix)
    return Check("good", f"the licence lies beside the weights: {', '.join(found)}")


def _links(out: Path) -> Iterator[Check]:
    root = out.resolve()
    for name, path in contents.files(out).items():
        if not path.is_symlink():
            continue
        if not path.exists() or not path.resolve().is_relative_to(root):
            yield Check("bad", f"{name} is a link that leads out of the folder", "put the file itself there")
        elif path.is_dir():
            yield Check("bad", f"{name} is a link to a folder", "put the folder itself there")


def _names(out: Path) -> Iterator[Check]:
    for name in contents.files(out):
        if contents.kind(name) != "local" and not name.isprintable():
            yield Check(
                "bad", f"{name!r} has characters in its name that cannot be shown", "rename it, or take it away"
            )


def _junk(out: Path) -> Check:
    """Say what stays here; the names of files are enough."""
    stays = [name for name in contents.files(out) if contents.kind(name) == "local" and not name.endswith(".json")]
    shown = ", ".join(stays[:3]) + (f" and {len(stays) - 3} more" if len(stays) > 3 else "")  # noqa: PLR2004
    return Check("good", f"logs and caches stay here: {shown}" if stays else "no logs and caches lie around")
