"""Check the tensors that a family requires, given the layers and options in config.json.

Engines build every module that config.json declares and silently compute with uninitialized memory if its tensors are
missing. Comparing layers with each other does not reveal a tensor that all of them lack, so each family lists its
required tensors (`needed` in its `tensors.json`). A row has `names`, of linears in any format or of tensors; `layers`
(`every`, `dense` or `moe`; absent for names outside layers); `when`, conditions on config.json (a value, or true or
false for a key that is set or not); and `blocks`, the keys that count {B}, the blocks of a vision tower. Extra layers
for multi-token prediction need the same tensors as other layers; their additional tensors belong to a draft model.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from halfbyte.errors import CheckpointError
from halfbyte.families.completeness import Contents

_CHOICE = re.compile(r"\(([^()]*)\)")
_BLOCK, _LAYER, _EXPERT = "{B}", "{L}", "{E}"


def check_required_tensors(contents: Contents, layers: int, experts: Mapping[int, int]) -> None:
    """Raise if a required tensor is missing."""
    missing = [name for name in _required_names(contents, layers, experts)
               if name not in contents.linears and name not in contents.plain]  # fmt: skip
    if missing:
        more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
        what = f"'{missing[0]}' is missing{more}: engines would compute with uninitialized memory"
        raise CheckpointError(what, where="weights", fix="download the whole checkpoint")


def _required_names(contents: Contents, layers: int, experts: Mapping[int, int]) -> Iterator[str]:
    """Yield the names of all required linears and tensors."""
    inside = {"every": range(layers), "moe": [layer for layer in range(layers) if layer in experts],
              "dense": [layer for layer in range(layers) if layer not in experts]}  # fmt: skip
    for row in contents.family.needed:
        if not all(_holds(contents, key, wanted) for key, wanted in row.get("when", {}).items()):
            continue
        names = [name for template in row["names"] for name in _choices(template)]
        if "layers" in row:
            for layer in inside[row["layers"]]:
                of_layer = [name.replace(_LAYER, str(layer)) for name in names]
                yield from _counted(of_layer, _EXPERT, experts.get(layer, 0))
        else:
            yield from _counted(names, _BLOCK, _blocks(contents, row["blocks"]) if "blocks" in row else 0)


def _counted(names: Sequence[str], marker: str, number: int) -> Iterator[str]:
    """Yield the names, expanding the marker to each number below `number`."""
    for name in names:
        if marker not in name:
            yield name
        else:
            before, _, after = name.partition(marker)
            yield from (f"{before}{position}{after}" for position in range(number))


def _choices(template: str) -> Iterator[str]:
    """Expand each `(a|b)` in a template."""
    parts = _CHOICE.split(template)  # alternates between plain text and choices
    options = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    yield from ("".join(chosen) for chosen in itertools.product(*options))


def _holds(contents: Contents, key: str, wanted: object) -> bool:
    value = contents.family.text(contents.config).get(key) or contents.config.get(key)
    return bool(value) == wanted if isinstance(wanted, bool) else value == wanted


def _blocks(contents: Contents, row: Mapping[str, Any]) -> int:
    """Return the number of blocks of a vision tower: the first key present, or the engines' default."""
    part: Any = contents.config.get(row["in"])
    section: Mapping[str, Any] = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    for key in row["keys"]:
        number = section.get(key)
        if number is None:
            continue
        if type(number) is not int or number < 0:
            what = f"{row['in']}.{key} is {number!r}, not a number of blocks"
            raise CheckpointError(what, where="config.json", fix="download it again")
        return number
    return row["otherwise"]
