"""Text of strangers: nothing in it may be hidden, reorder its neighbours, or be mistaken for a part of the page.

The template escapes what HTML reads. What is left are characters that no reader sees or that act on others: controls,
direction marks, joiners, halves of surrogate pairs. They are spelled out. Paths lose their folders, which tell whose
machine it was; only what a model was asked and answered keeps every word.
"""

from __future__ import annotations

import unicodedata

from halfbyte.publish.local_folders import without_folders

MOST_CHARACTERS = 4_000  # of one text
_KEPT = {"\n", "\t"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_MOST_MARKS = 8  # combining marks in a row; more of them paint over the lines around


def visible(text: object, most: int = MOST_CHARACTERS, *, keep_paths: bool = False) -> str:
    """Return a text in which every character is seen; a long one ends with how much is left out."""
    whole = str(text) if keep_paths else without_folders(str(text))
    found: list[str] = []
    marks = 0
    for one in whole[:most]:
        category = unicodedata.category(one)
        marks = marks + 1 if category in {"Mn", "Me"} else 0
        hide = marks > _MOST_MARKS or (category in _HIDDEN and one not in _KEPT)
        found.append(f"⟨U+{ord(one):04X}⟩" if hide else one)
    if len(whole) > most:
        found.append(f" … {len(whole) - most:,} more characters")
    return "".join(found)
