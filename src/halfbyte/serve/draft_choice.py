"""Which draft `--draft` names, whether it can be one, and what is counted for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.serve import knowledge
from halfbyte.serve.draft import Draft, draft_of, eagle3_mla
from halfbyte.serve.settings import Note
from halfbyte.source.checkpoint import open_checkpoint

_AUTO = "auto"
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_FIX = "write --draft auto, a name on the Hub as in organisation/name, or the folder of a draft"
_JOINS_STATES = "fc"  # the linear that only an Eagle3 draft has
_LATENT = "kv_a_proj_with_mqa"
_ESTIMATE = Draft(5 * 10**9)  # about a layer, a dense MLP and an output head as wide as Kimi's


def draft_facts(family: str, asked: str | None) -> dict[str, Any]:
    """Return what rules ask of the draft; UsageError for what is none."""
    if asked is None:
        return {}
    if asked == _AUTO:
        found = knowledge.drafts().get(family)
        if not found:
            fix = "name one with --draft ORGANISATION/NAME"
            raise UsageError(f"no Eagle3 draft is known for {family}", where="--draft", fix=fix)
        return {"draft": found[0].model, "draft_mla": found[0].mla}
    if asked and Path(asked).is_dir():
        return {"draft": asked, "draft_mla": _LATENT in _parts_of_draft(Path(asked))}
    if not _HUB_NAME.fullmatch(asked):
        raise UsageError(f"'{asked}' is neither a folder nor a name on the Hub", where="--draft", fix=_FIX)
    return {"draft": asked, "draft_mla": _is_latent(asked)}


def draft_size(name: str | None) -> Draft | None:
    """Return what is counted for a draft: its headers, the published geometry of MLA drafts, or an estimate."""
    if name is None:
        return None
    if Path(name).is_dir():
        return draft_of(Path(name))
    return eagle3_mla() if _is_latent(name) else _ESTIMATE


def draft_notes(name: str | None) -> list[Note]:
    """Say where the size of a draft is a guess."""
    if name is None or Path(name).is_dir() or _known().get(name):
        return []
    counted = "what published MLA drafts take" if _is_latent(name) else f"{_ESTIMATE.nbytes // 10**9} GB"
    text = f"the size of {name} is not known: {counted} is counted for it; download it and name its folder to count it"
    return [Note(text, "halfbyte")]


def _known() -> dict[str, bool]:
    """Return the drafts that are known, and whether their attention is MLA."""
    return {row.model: row.mla for rows in knowledge.drafts().values() for row in rows}


def _is_latent(name: str) -> bool:
    return _known().get(name, "mla" in name.lower())


def _parts_of_draft(folder: Path) -> set[str]:
    """Return the words in the names of a draft's tensors."""
    words = {word for name in open_checkpoint(folder).tensors for word in name.split(".")}
    if _JOINS_STATES not in words:
        what = f"this is no Eagle3 draft: it has no `{_JOINS_STATES}`, which joins the hidden states of the model"
        raise UsageError(what, where=str(folder), fix=_FIX)
    return words
