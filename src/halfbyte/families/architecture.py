"""Map tensor names to roles, and linears to the groups that share a scale.

Each family is a JSON file in `data/`: the config.json keys of its dimensions (`keys`), the modules whose weights may be
stored in any format (`linears`), the full names of all other tensors, which are kept unchanged (`others`), the linears
that engines load into one tensor and that must therefore share a scale (`fused`), and the tensors that every model of
the family needs (`needed`, see required_tensors.py). In names, {L} is a layer, {E} an expert, (a|b) a choice, and * any
text.

A tensor that no template matches is an error: if it were skipped silently, an engine would miss it.
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
from halfbyte.formats.registry import FORMATS

# Tensors that a linear may have besides those of its format.
COMPANIONS = ("bias", "input_scale", "input_global_scale")
_MOST = 1 << 21  # limit for any count in a config: layers, experts, widths, vocabulary
# Valid suffixes of a linear's tensors.
SUFFIXES = frozenset(COMPANIONS) | {part.suffix for row in FORMATS.values() for part in row.tensors}


class Place(NamedTuple):
    """A tensor's role. For a tensor outside linears, `suffix` is empty and `module` is the tensor's name."""

    role: str
    module: str
    suffix: str
    layer: int | None
    expert: int | None


class LinearRole(NamedTuple):
    """A linear's role, layer and expert."""

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
    needed: tuple[Mapping[str, Any], ...]  # rows of names, read by required_tensors.py

    def place(self, tensor: str) -> Place:
        """Return a tensor's role; raise if the family does not have its name."""
        module, _, suffix = tensor.rpartition(".")
        if suffix in SUFFIXES and (linear := self.linear(module)):
            return Place(linear.role, module, suffix, linear.layer, linear.expert)
        return self.other(tensor)

    def linear(self, module: str) -> LinearRole | None:
        """Return a linear's role, or None if the module is not a linear."""
        for role, pattern in self.linears:  # experts are listed first, as they are the most frequent
            if match := pattern.fullmatch(module):
                return LinearRole(role, *_numbers(match))
        return None

    def other(self, tensor: str) -> Place:
        """Return the role of a tensor outside linears; raise if the family does not have its name."""
        for role, pattern in self.others:
            if match := pattern.fullmatch(tensor):
                return Place(role, tensor, "", *_numbers(match))
        fix = f"add its name to families/data/{self.name}.json"
        raise CheckpointError(f"unknown tensor '{tensor}' in the {self.title}", where=tensor, fix=fix)

    def text(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of config.json that describes the text model."""
        section = config.get(self.text_config) if self.text_config else config
        if not isinstance(section, Mapping):
            raise CheckpointError(
                f"config.json has no {self.text_config}", where="config.json", fix="download it again"
            )
        return cast("Mapping[str, Any]", section)

    def number(self, config: Mapping[str, Any], key: str) -> int | None:
        """Return a number from config.json by halfbyte's key for it, such as `experts`."""
        name = self.keys[key]
        value = self.text(config).get(name) if name else None
        if value is not None and type(value) is not int:
            raise CheckpointError(f"{name} is {value!r}, not a number", where="config.json", fix="download it again")
        if value is not None and not 0 <= value <= _MOST:
            what = f"{name} is out of range: {value}" if abs(value) < 2**64 else f"{name} is out of range"
            raise CheckpointError(what, where="config.json", fix="download it again")
        return value

    def with_expert(self, module: str, number: int) -> str:
        """Return the name of an expert's linear with another expert number."""
        for _, pattern in self.linears:
            if (match := pattern.fullmatch(module)) and len(match.groups()) > 1:
                start, end = match.span(2)
                return f"{module[:start]}{number}{module[end:]}"
        raise ValueError(module)

    def fused_group(self, module: str) -> str:
        """Return the name of a linear's fused group, or its own name if it is not fused."""
        parent, _, leaf = module.rpartition(".")
        for group in self.fused:
            if leaf in group:
                return f"{parent}.{'+'.join(group)}"
        return module


def _numbers(match: re.Match[str]) -> tuple[int | None, int | None]:
    numbers = [int(text) for text in match.groups()]  # {L} precedes {E} in every template
    return (numbers[0] if numbers else None, numbers[1] if len(numbers) > 1 else None)


def _pattern(template: str) -> re.Pattern[str]:
    """Compile a name template: {L} and {E} are numbers without leading zeros, * is any text, (a|b) a choice."""
    escaped = re.escape(template).replace(r"\(", "(?:").replace(r"\)", ")").replace(r"\|", "|").replace(r"\*", ".*")
    number = "(0|[1-9][0-9]*)"
    return re.compile(escaped.replace(r"\{L\}", number).replace(r"\{E\}", number))


@cache
def architectures() -> tuple[Architecture, ...]:
    """Return all built-in families."""
    entries = files("halfbyte.families").joinpath("data").iterdir()
    return tuple(_load(entry.name.removesuffix(".json"), entry.read_text()) for entry in sorted(entries, key=str))


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
    """Return the family of a config.json."""
    model_type = config.get("model_type")
    for architecture in architectures():
        if model_type in architecture.model_types:
            return architecture
    known = ", ".join(name for architecture in architectures() for name in architecture.model_types)
    fix = f"supported: {known}; to add a family, see docs/add-a-family.md"
    raise CheckpointError(f"unknown model_type {model_type!r}", where="config.json", fix=fix)
