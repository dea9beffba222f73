"""Make untrusted text fully visible, so that it cannot hide, reorder or imitate parts of the page.

The template escapes HTML. This module spells out invisible and formatting characters: controls, direction marks,
joiners, unpaired surrogates. Paths lose their folders, except in requests and answers of models.
"""

from __future__ import annotations

import unicodedata

from halfbyte.publish.local_folders import without_folders

MOST_CHARACTERS = 4_000  # per text
_KEPT = {"\n", "\t"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_MOST_MARKS = 8  # consecutive combining marks; more would cover the surrounding lines


def visible(text: object, most: int = MOST_CHARACTERS, *, keep_paths: bool = False) -> str:
    """Return a text in which every character is visible; a long text is truncated with a note."""
    whole = str(text) if keep_paths else without_folders(str(text))
    shown: list[str] = []
    marks = 0
    for character in whole[:most]:
        category = unicodedata.category(character)
        marks = marks + 1 if category in {"Mn", "Me"} else 0
        hide = marks > _MOST_MARKS or (category in _HIDDEN and character not in _KEPT)
        shown.append(f"⟨U+{ord(character):04X}⟩" if hide else character)
    if len(whole) > most:
        shown.append(f" … {len(whole) - most:,} more characters")
    return "".join(shown)
