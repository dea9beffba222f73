"""Names to roles: which part each tensor plays in its model, and which linears share a scale.

The families are data (`data/*.json`): the names of the numbers in config.json (`keys`), the modules whose weights may
be stored in any format (`linears`), whole names of everything else, which is kept as it is (`others`), and the linears
that engines load into one tensor with one scale, and that must therefore share theirs (`fused`), and what no model of
the family can do without (`needed`, see needed.py). In names {L} is a layer, {E} an expert, (a|b) either, and *
anything.

A tensor that no template knows stops the plan with its name: a part that is passed over in silence is a part that an
engine does not find.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, cast

from halfbyte.errors import CheckpointError
from halfbyte.numerics.formats import FORMATS

# What a linear may have besides the tensors of its format; it says nothing about how the weights are stored.
COMPANIONS = ("bias", "input_scale", "input_global_scale")
_MOST = 1 << 21  # of any count in a config: layers, experts, widths, words
# What may follow a linear's name.
SUFFIXES = frozenset(COMPANIONS) | {part.suffix for row in FORMATS.values() for part in row.tensors}


class Place(NamedTuple):
    """The part a tensor plays. For tensors that are no part of a linear, `suffix` is empty and `module` the name."""

    role: str
    module: str
    suffix: str
    layer: int | None
    expert: int | None


class Seat(NamedTuple):
    """The part that a whole linear plays."""

    role: str
    layer: int | None
    expert: int | None


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model family."""

    name: str
    title: str
    model_types: tuple[str, ...]
    text_config: str | None
    keys: Mapping[str, str | None]
    fused: tuple[tuple[str, ...], ...]
    linears: tuple[tuple[str, re.Pattern[str]], ...]
    others: tuple[tuple[str, re.Pattern[str]], ...]
    needed: tuple[Mapping[str, Any], ...]  # rows of names; `needed.py` reads them

    def place(self, tensor: str) -> Place:
        """Return the part a tensor plays; a name that the family does not have is an error."""
        module, _, suffix = tensor.rpartition(".")
        if suffix in SUFFIXES and (seat := self.linear(module)):
            return Place(seat.role, module, suffix, seat.layer, seat.expert)
        return self.other(tensor)

    def linear(self, module: str) -> Seat | None:
        """Return the part a linear plays, or None for a module that is none."""
        for role, pattern in self.linears:  # experts come first, and are nearly all there is
            if match := pattern.fullmatch(module):
                return Seat(role, *_numbers(match))
        return None

    def other(self, tensor: str) -> Place:
        """Return the part of a tensor that belongs to no linear; a name that the family does not have is an error."""
        for role, pattern in self.others:
            if match := pattern.fullmatch(tensor):
                return Place(role, tensor, "", *_numbers(match))
        fix = f"halfbyte does not guess: add its name to models/data/{self.name}.json"
        raise CheckpointError(f"tensor '{tensor}' has no role in the {self.title}", where=tensor, fix=fix)

    def text(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of config.json that describes the text model."""
        found = config.get(self.text_config) if self.text_config else config
        if not isinstance(found, Mapping):
            raise CheckpointError(
                f"config.json has no {self.text_config}", where="config.json", fix="download it again"
            )
        return cast("Mapping[str, Any]", found)

    def number(self, config: Mapping[str, Any], key: str) -> int | None:
        """Return a number that the family's config gives under its own name, such as `experts`."""
        name = self.keys[key]
        value = self.text(config).get(name) if name else None
        if value is not None and type(value) is not int:
            raise CheckpointError(f"{name} is {value!r}, not a number", where="config.json", fix="download it again")
        if value is not None and not 0 <= value <= _MOST:
            what = f"{name} is {value}, which no model has" if abs(value) < 2**64 else f"{name} is beyond all numbers"
            raise CheckpointError(what, where="config.json", fix="download it again")
        return value

    def with_expert(self, module: str, number: int) -> str:
        """Return the name that an expert's linear has under another number."""
        for _, pattern in self.linears:
            if (match := pattern.fullmatch(module)) and len(match.groups()) > 1:
                start, end = match.span(2)
                return f"{module[:start]}{number}{module[end:]}"
        raise ValueError(module)

    def fused_group(self, module: str) -> str:
        """Return the name that a linear shares with those it is fused with; its own where it stands alone."""
        parent, _, leaf = module.rpartition(".")
        for group in self.fused:
            if leaf in group:
                return f"{parent}.{'+'.join(group)}"
        return module


def _numbers(match: re.Match[str]) -> tuple[int | None, int | None]:
    numbers = [int(text) for text in match.groups()]  # {L} stands before {E} in every template
    return (numbers[0] if numbers else None, numbers[1] if len(numbers) > 1 else None)


def _pattern(template: str) -> re.Pattern[str]:
    """Compile a name template: {L} and {E} are numbers without leading zeros, * is anything, (a|b) either."""
    escaped = re.escape(template).replace(r"\(", "(?:").replace(r"\)", ")").replace(r"\|", "|").replace(r"\*", ".*")
    number = "(0|[1-9][0-9]*)"
    return re.compile(escaped.replace(r"\{L\}", number).replace(r"\{E\}", number))


@cache
def architectures() -> tuple[Architecture, ...]:
    """Return every family that comes with halfbyte."""
    found = files("halfbyte.models").joinpath("data").iterdir()
    return tuple(_load(entry.name.removesuffix(".json"), entry.read_text()) for entry in sorted(found, key=str))


def _load(name: str, text: str) -> Architecture:
    data = json.loads(text)
    others: Sequence[tuple[str, Sequence[str]]] = list(data["others"].items())
    return Architecture(
        name=name,
        title=data["title"],
        model_types=tuple(data["model_types"]),
        text_config=data["text_config"],
        keys=data["keys"],
        fused=tuple(tuple(group) for group in data["fused"]),
        linears=tuple((role, _pattern(template)) for role, template in data["linears"].items()),
        others=tuple((role, _pattern(template)) for role, templates in others for template in templates),
        needed=tuple(data["needed"]),
    )


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the family that a config.json names."""
    model_type = config.get("model_type")
    for architecture in architectures():
        if model_type in architecture.model_types:
            return architecture
    known = ", ".join(name for architecture in architectures() for name in architecture.model_types)
    fix = f"halfbyte knows {known}; a family is one JSON file, see docs/add-a-family.md"
    raise CheckpointError(f"unknown model_type {model_type!r}", where="config.json", fix=fix)
