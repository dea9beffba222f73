"""Resolve `--draft`: the draft's name, whether it is an Eagle3 draft, and its size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.errors import UsageError
from halfbyte.serve import knowledge
from halfbyte.serve.draft import Draft, draft_of, eagle3_mla
from halfbyte.serve.settings import Note

_AUTO = "auto"
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_FIX = "use --draft auto, a Hub name such as organization/name, or the folder of a draft"
_JOINS_STATES = "fc"  # a linear that only Eagle3 drafts have
_LATENT = "kv_a_proj_with_mqa"
_ESTIMATE = Draft(5 * 10**9)  # about one attention layer, a dense MLP and an output head of Kimi's width


def draft_facts(family: str, name: str | None) -> dict[str, Any]:
    """Return the facts of the draft; raise UsageError if it is not a valid draft."""
    if name is None:
        return {}
    if name == _AUTO:
        known = knowledge.drafts().get(family)
        if not known:
            fix = "choose one with --draft ORGANIZATION/NAME"
            raise UsageError(f"no Eagle3 draft is known for {family}", where="--draft", fix=fix)
        return {"draft": known[0].model, "draft_mla": known[0].mla}
    if name and Path(name).is_dir():
        return {"draft": name, "draft_mla": _LATENT in _parts_of_draft(Path(name))}
    if not _HUB_NAME.fullmatch(name):
        raise UsageError(f"'{name}' is neither a folder nor a Hub name", where="--draft", fix=_FIX)
    return {"draft": name, "draft_mla": _is_latent(name)}


def draft_size(name: str | None) -> Draft | None:
    """Return a draft's size, from its headers, from the published geometry of MLA drafts, or as an estimate."""
    if name is None:
        return None
    if Path(name).is_dir():
        return draft_of(Path(name))
    return eagle3_mla() if _is_latent(name) else _ESTIMATE


def draft_notes(name: str | None) -> list[Note]:
    """Return a warning if the size of a draft is an estimate."""
    if name is None or Path(name).is_dir() or _known().get(name):
        return []
    assumed = "that of published MLA drafts" if _is_latent(name) else f"{_ESTIMATE.nbytes // 10**9} GB"
    text = (
        f"the size of {name} is unknown and assumed to be {assumed}; download it and pass its folder for the exact size"
    )
    return [Note(text, "halfbyte")]


def _known() -> dict[str, bool]:
    """Return for each known draft whether its attention is MLA."""
    return {row.model: row.mla for rows in knowledge.drafts().values() for row in rows}


def _is_latent(name: str) -> bool:
    return _known().get(name, "mla" in name.lower())


def _parts_of_draft(folder: Path) -> set[str]:
    """Return the parts of a draft's tensor names."""
    words = {word for name in open_checkpoint(folder).tensors for word in name.split(".")}
    if _JOINS_STATES not in words:
        what = f"not an Eagle3 draft: it has no `{_JOINS_STATES}`, which joins the hidden states of the model"
        raise UsageError(what, where=str(folder), fix=_FIX)
    return words
