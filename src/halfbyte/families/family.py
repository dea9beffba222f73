"""A model family: the role of each tensor, and everything that differs from family to family by name.

Each family is a folder with `tensors.json`, which `read_family` reads. JSON, because a host that only runs a plan may
lack PyYAML. Its keys:

    model_types, title, text_config    which config.json it describes, and where the text model's keys are
    keys                               the config.json keys of its dimensions
    linears                            by role, the modules whose weights may be stored in any format
    others                             by role, the full names of all other tensors, which are kept unchanged
    needed                             tensors that every model of the family needs, see required_tensors.py
    projections                        what an MLP's linears do (gate, up, down), by the last part of their names
    fused                              linears that engines load into one tensor and that must therefore share a scale,
                                       by the engines' name for it
    vllm_renames                       name prefixes that vLLM's model replaces; null if vLLM's model renames nothing
    forward                            the module that runs its layers, and the names it needs: the prefix of a layer,
                                       its attention module, embedding, final norm and head; null if there is none

In names, {L} is a layer, {E} an expert, (a|b) a choice, and * any text. A tensor that no template matches is an error:
if it were skipped silently, an engine would miss it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from halfbyte.errors import CheckpointError
from halfbyte.formats.registry import FORMATS, input_scale_suffixes

# Tensors that a linear may have besides those of its format.
COMPANIONS = ("bias", *input_scale_suffixes())
ROUTED = "routed_experts"
MLP_ROLES = (ROUTED, "shared_experts", "dense_mlp")
# The linears of an MLP under any name: down(act(gate(x)) * up(x)).
GATE, UP, DOWN = "gate", "up", "down"
PROJECTIONS = (GATE, UP, DOWN)
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
    """A linear's role, layer and expert, and its projection (one of PROJECTIONS) if it belongs to an MLP."""

    role: str
    layer: int | None
    expert: int | None
    projection: str | None


@dataclass(frozen=True, slots=True)
class Forward:
    """How a family's layers run: a module with `text_model(family, config, attention)`, and names for it."""

    module: str  # imported when layers run, as it needs PyTorch and transformers
    layer: str  # the prefix of a layer's tensors, with {L}
    attention: str  # the attention module in a layer
    embedding: str
    norm: str
    head: str


@dataclass(frozen=True, slots=True)
class Family:
    """One model family; `name` is that of its folder."""

    name: str
    title: str
    model_types: tuple[str, ...]
    text_config: str | None
    keys: Mapping[str, str | None]
    linears: tuple[tuple[str, re.Pattern[str]], ...]
    others: tuple[tuple[str, re.Pattern[str]], ...]
    needed: tuple[Mapping[str, Any], ...]  # rows of names, read by required_tensors.py
    projections: Mapping[str, str]  # the last part of an MLP linear's name -> one of PROJECTIONS
    fused: Mapping[str, tuple[str, ...]]  # the engines' name of a fused linear -> the last parts of its linears' names
    vllm_renames: tuple[tuple[str, str], ...] | None  # prefix -> its replacement in vLLM; None if it renames nothing
    forward: Forward | None

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
                leaf = module[module.rfind(".") + 1 :]
                projection = self.projections[leaf] if role in MLP_ROLES else None
                return LinearRole(role, *_numbers(match), projection)
        return None

    def other(self, tensor: str) -> Place:
        """Return the role of a tensor outside linears; raise if the family does not have its name."""
        for role, pattern in self.others:
            if match := pattern.fullmatch(tensor):
                return Place(role, tensor, "", *_numbers(match))
        fix = f"add its name to families/{self.name}/tensors.json"
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
        start, end = self._expert_span(module)
        return f"{module[:start]}{number}{module[end:]}"

    def experts_module(self, module: str) -> str:
        """Return the module that holds all experts of the layer of an expert's linear."""
        return module[: self._expert_span(module)[0]].removesuffix(".")

    def _expert_span(self, module: str) -> tuple[int, int]:
        for _, pattern in self.linears:
            if (match := pattern.fullmatch(module)) and len(match.groups()) > 1:
                return match.span(2)
        raise ValueError(module)

    def fused_group(self, module: str) -> str:
        """Return the name of a linear's fused group, or its own name if it is not fused."""
        parent, _, leaf = module.rpartition(".")
        for group in self.fused.values():
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


def read_family(name: str, text: str) -> Family:
    """Return the family that the text of a `tensors.json` describes."""
    data = json.loads(text)
    others: Sequence[tuple[str, Sequence[str]]] = list(data["others"].items())
    renames = data["vllm_renames"]
    return Family(
        name=name,
        title=data["title"],
        model_types=tuple(data["model_types"]),
        text_config=data["text_config"],
        keys=data["keys"],
        linears=tuple((role, _pattern(template)) for role, template in data["linears"].items()),
        others=tuple((role, _pattern(template)) for role, templates in others for template in templates),
        needed=tuple(data["needed"]),
        projections={leaf: projection for projection in PROJECTIONS for leaf in data["projections"][projection]},
        fused={engine_name: tuple(leaves) for engine_name, leaves in data["fused"].items()},
        vllm_renames=None if renames is None else tuple(renames.items()),
        forward=None if data["forward"] is None else Forward(**data["forward"]),
    )
