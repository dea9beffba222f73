"""Write README.md of an output folder atomically, replacing only a README that halfbyte wrote or copied.

`halfbyte quantize` copies the source's README.md, also as halfbyte/source-README.md, which identifies the copy.
halfbyte/card.json records the hash of the card we wrote, the user's options for later runs, and the hashes of the
evidence behind the card.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

from halfbyte.checkpoint.atomic_write import disk_error, write_json, write_whole
from halfbyte.checkpoint.hashing import file_sha256
from halfbyte.checkpoint.output_folder import FOLDER, README, SOURCE_README
from halfbyte.checkpoint.untrusted_files import has_bytes, json_object, plain_bytes
from halfbyte.errors import UsageError
from halfbyte.evidence.fields import mapping, words
from halfbyte.evidence.folder import KINDS, Evidence
from halfbyte.publish.card.facts import CardFacts, CardOverrides, read_facts
from halfbyte.publish.card.render import render
from halfbyte.publish.contents import CARD_EVIDENCE, CARD_HASH, CARD_RECORD

_FORMAT = 1


def write_card(out: Path, said: CardOverrides | None = None, *, force: bool = False) -> Path:
    """Write README.md from the evidence of a folder and return its path.

    Raise UsageError if the folder has a README that is neither ours nor the source's, unless forced.
    """
    record = out / FOLDER / CARD_RECORD
    options = (said or CardOverrides()).over(mapping(json_object(record), "said"))
    card = read_facts(out, options)
    old, kept = _old(out / README), out / FOLDER / SOURCE_README
    keep_copy = old is not None and not _is_ours(old, record) and not kept.exists()
    if old is not None and not force:
        _refuse_foreign(card, old)
    text = render(card).encode()
    state = {
        "format": _FORMAT,
        CARD_HASH: hashlib.sha256(text).hexdigest(),
        "said": asdict(options),
        CARD_EVIDENCE: evidence_hashes(card.evidence),
    }
    try:
        (out / FOLDER).mkdir(exist_ok=True)
        if keep_copy and old is not None:
            write_whole(kept, old)
        write_json(record, state)  # before the card, which it identifies
        write_whole(out / README, text)
    except OSError as error:
        raise disk_error(error, out, "the weights") from None
    return out / README


def title_of(out: Path) -> str:
    """Return the title of a folder's card, written or not."""
    return read_facts(out, CardOverrides().over(mapping(json_object(out / FOLDER / CARD_RECORD), "said"))).title


def evidence_hashes(evidence: Evidence) -> dict[str, str]:
    """Return the SHA-256 of each evidence file behind a card."""
    return {kind: file_sha256(evidence.path(KINDS[kind])) for kind in sorted(evidence.records)}


def _old(path: Path) -> bytes | None:
    if path.is_symlink():
        raise UsageError("README.md is a symlink", where=str(path), fix="replace the symlink with a copy of its target")
    try:
        return plain_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        fix = "move it away; the card will be written there"
        raise UsageError(f"cannot read README.md: {error.strerror}", where=str(path), fix=fix) from None


def _refuse_foreign(card: CardFacts, old: bytes) -> None:
    """Raise UsageError for the README of a foreign checkpoint, or one edited by hand after the run."""
    out = card.evidence.out
    if _is_ours(old, out / FOLDER / CARD_RECORD) or has_bytes(out / FOLDER / SOURCE_README, old):
        return
    if not card.plan:
        what = "the checkpoint was not created by halfbyte and has a README.md"
        fix = "pass the output folder of halfbyte quantize"
    else:
        what, fix = "README.md was neither copied from the source nor written by halfbyte", "move it away"
    fix += f", or replace it with --force, which keeps a copy as {FOLDER}/{SOURCE_README}"
    raise UsageError(what, where=str(out / README), fix=fix)


def _is_ours(old: bytes, record: Path) -> bool:
    return words(json_object(record), CARD_HASH) == hashlib.sha256(old).hexdigest()
