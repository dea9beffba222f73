"""README.md of an output folder: written whole, and only in the place of one that we or the source wrote.

After `halfbyte quantize` it is a copy of the source's, which goes to halfbyte/source-README.md. What we wrote is known
by its hash in halfbyte/card.json; that file also keeps what a user said, so that the card can be made again without it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from halfbyte.errors import UsageError
from halfbyte.folders import FOLDER, README, SOURCE_README
from halfbyte.json_file import json_object
from halfbyte.publish.card.known import Known, Said, know
from halfbyte.publish.card.reading import mapping, words
from halfbyte.publish.card.render import render
from halfbyte.publish.contents import CARD_HASH, CARD_RECORD
from halfbyte.source.checkpoint import CONFIG, INDEX
from halfbyte.source.foreign import plain_bytes
from halfbyte.write import disk_error, write_whole

_FORMAT = 1
_COPYING_NS = 2 * 10**9  # between two small files of one copied folder


def write_card(out: Path, said: Said | None = None, *, force: bool = False) -> Path:
    """Write README.md from the evidence of a folder, and return it.

    UsageError where a README lies there that neither we nor the source wrote, unless forced.
    """
    record = out / FOLDER / CARD_RECORD
    whole = (said or Said()).over(mapping(json_object(record), "said"))
    known = know(out, whole)
    old, kept = _old(out / README), out / FOLDER / SOURCE_README
    keeps = old is not None and not _is_ours(old, record) and not kept.exists()
    if old is not None and not force:
        _refuse_foreign(known, old)
    text = render(known).encode()
    state = {"format": _FORMAT, CARD_HASH: _sha256(text), "said": asdict(replace(whole))}
    try:
        (out / FOLDER).mkdir(exist_ok=True)
        if keeps and old is not None:
            write_whole(kept, old)
        write_whole(record, (json.dumps(state, indent=1) + "\n").encode())  # first: a card without it is not ours
        write_whole(out / README, text)
    except OSError as error:
        raise disk_error(error, out, "the weights") from None
    return out / README


def _old(path: Path) -> bytes | None:
    if path.is_symlink():
        raise UsageError("README.md is a link", where=str(path), fix="remove the link, or copy the file it leads to")
    try:
        return plain_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        fix = "move it away: the card stands in its place"
        raise UsageError(f"README.md cannot be read: {error.strerror}", where=str(path), fix=fix) from None


def _refuse_foreign(known: Known, old: bytes) -> None:
    """Refuse a README that was written by hand after the run."""
    out = known.evidence.out
    kept = out / FOLDER / SOURCE_README
    if _is_ours(old, out / FOLDER / CARD_RECORD) or _holds(kept, old):
        return
    if not kept.is_file() and not (out / FOLDER / CARD_RECORD).exists() and _as_old_as_the_weights(out):
        return
    fix = "move it away, or give --force to replace it"
    raise UsageError("this README.md was not written by halfbyte, nor copied from the source", where=str(out / README),
                     fix=fix)  # fmt: skip


def _holds(path: Path, text: bytes) -> bool:
    try:
        return plain_bytes(path, len(text)) == text
    except OSError:
        return False


def _is_ours(old: bytes, record: Path) -> bool:
    return words(json_object(record), CARD_HASH) == _sha256(old)


def _as_old_as_the_weights(out: Path) -> bool:
    """Whether README.md was there when the run ended, which writes config.json last."""
    files = [*out.glob("*.safetensors"), out / CONFIG, out / INDEX]
    newest = max(path.stat().st_mtime_ns for path in files if path.is_file())
    return (out / README).stat().st_mtime_ns <= newest + _COPYING_NS


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
