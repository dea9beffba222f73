"""The tensors that a model cannot do without: those of its family, for the layers and switches of its config.json.

Engines build every module that config.json asks for, and say nothing of one that no tensor fills: it computes with
whatever was in memory. Comparing layers with each other does not show what all of them lack, so that each family lists
its own (`needed` in `data/*.json`). A row has names, of linears in any format or of whole tensors; the layers they are
in (`every`, `dense`, `moe`; outside layers without); what config.json must say for them to be there (`when`: a value,
or true and false for one that is set and one that is not); and the keys that count {B}, the blocks of a vision tower.
Extra layers for multi-token prediction need what layers need; what else they have belongs to a draft, not to the model.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from halfbyte.errors import CheckpointError
from halfbyte.models.agreement import Contents

_CHOICE = re.compile(r"\(([^()]*)\)")
_BLOCK, _LAYER, _EXPERT = "{B}", "{L}", "{E}"


def check_needed(contents: Contents, layers: int, experts: Mapping[int, int]) -> None:
    """Everything that the family's models need is there; CheckpointError with the first that is not."""
    missing = [name for name in _needed(contents, layers, experts)
               if name not in contents.linears and name not in contents.plain]  # fmt: skip
    if missing:
        more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
        what = f"'{missing[0]}' is missing{more}, and engines would compute with what is in memory there"
        raise CheckpointError(what, where="weights", fix="download the whole checkpoint")


def _needed(contents: Contents, layers: int, experts: Mapping[int, int]) -> Iterator[str]:
    """Yield the names of all linears and other tensors that there must be."""
    inside = {"every": range(layers), "moe": [layer for layer in range(layers) if layer in experts],
              "dense": [layer for layer in range(layers) if layer not in experts]}  # fmt: skip
    for row in contents.architecture.needed:
        if not all(_holds(contents, key, wanted) for key, wanted in row.get("when", {}).items()):
            continue
        names = [name for template in row["names"] for name in _choices(template)]
        if "layers" in row:
            for layer in inside[row["layers"]]:
                of_layer = [name.replace(_LAYER, str(layer)) for name in names]
                yield from _counted(of_layer, _EXPERT, experts.get(layer, 0))
        else:
            yield from _counted(names, _BLOCK, _blocks(contents, row["blocks"]) if "blocks" in row else 0)


def _counted(names: Sequence[str], mark: str, number: int) -> Iterator[str]:
    """Yield names, and one for each number below another where they have the mark."""
    for name in names:
        if mark not in name:
            yield name
        else:
            before, _, after = name.partition(mark)
            yield from (f"{before}{position}{after}" for position in range(number))


def _choices(template: str) -> Iterator[str]:
    """Yield the names of a template with `(a|b)` in it."""
    parts = _CHOICE.split(template)  # what lies between choices, and choices, in turn
    every = [part.split("|") if place % 2 else [part] for place, part in enumerate(parts)]
    yield from ("".join(chosen) for chosen in itertools.product(*every))


def _holds(contents: Contents, key: str, wanted: object) -> bool:
    found = contents.architecture.text(contents.config).get(key) or contents.config.get(key)
    return bool(found) == wanted if isinstance(wanted, bool) else found == wanted


def _blocks(contents: Contents, row: Mapping[str, Any]) -> int:
    """Return how many blocks a vision tower has: the first of its keys that is there, or the engines' own number."""
    part: Any = contents.config.get(row["in"])
    found: Mapping[str, Any] = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    for key in row["keys"]:
        number = found.get(key)
        if number is None:
            continue
        if type(number) is not int or number < 0:
            what = f"{row['in']}.{key} is {number!r}, not a number of blocks"
            raise CheckpointError(what, where="config.json", fix="download it again")
        return number
    return row["otherwise"]
