"""Which modules an engine takes for quantized: the matching rules of vLLM's loaders, in checkpoint names.

vLLM 0.32: ModelOpt's list is matched exactly, as substrings, then as globs; compressed-tensors' and Quark's exactly or,
after `re:`, as a regular expression from the start of the name. Layers that are loaded as one are decided as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from halfbyte.models.architecture import Architecture

Kind = Literal["linear", "experts", "head"]

# What engines call the linears that they load into one tensor.
FUSED_NAMES: Mapping[tuple[str, ...], str] = {
    ("gate_proj", "up_proj"): "gate_up_proj",
    ("q_a_proj", "kv_a_proj_with_mqa"): "fused_qkv_a_proj",
    ("q_proj", "k_proj", "v_proj"): "qkv_proj",
}
_REGEX = "re:"
_MATCHERS = ("modelopt", "compressed-tensors", "quark", "fp8")


@dataclass(frozen=True, slots=True)
class EngineModule:
    """A layer as an engine builds it, and the modules of the checkpoint that it is loaded from."""

    name: str
    kind: Kind
    role: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A quantization block as engines read it."""

    method: str
    format: str  # compressed-tensors' format, ModelOpt's quant_algo
    ignore: tuple[str, ...]
    targets: tuple[str, ...]
    static_inputs: bool  # engines expect an input scale for each quantized linear

    @property
    def known(self) -> bool:
        """Whether we know how engines match this block's list."""
        return self.method in _MATCHERS


def read_block(raw: Mapping[str, Any]) -> Block:
    """Read the quantization block of a config.json, or ModelOpt's hf_quant_config.json."""
    inner = cast("Mapping[str, Any]", raw.get("quantization") or raw)
    method = str(raw.get("quant_method") or ("modelopt" if "quantization" in raw else ""))
    keys = ("ignore", "exclude", "exclude_modules", "ignored_layers", "modules_to_not_convert")
    ignore = next((inner[key] for key in keys if inner.get(key)), ())
    groups = cast("Mapping[str, Mapping[str, Any]]", inner.get("config_groups") or {})
    targets = [target for group in groups.values() for target in group.get("targets") or ()]
    inputs = [group.get("input_activations") for group in groups.values()]
    static = any(entry is not None and entry.get("dynamic") in (False, "local") for entry in inputs)
    if method.startswith("modelopt") and not groups:
        static = "W4A16" not in str(inner.get("quant_algo"))
    formats = [str(group["format"]) for group in groups.values() if group.get("format")]
    said = inner.get("quant_algo") or inner.get("format") or (formats[0] if formats else "")
    name = "modelopt" if method.startswith("modelopt") else method
    return Block(name, str(said), tuple(map(str, ignore)), tuple(map(str, targets)), static)


def engine_modules(architecture: Architecture, roles: Mapping[str, str]) -> list[EngineModule]:
    """Group the modules of a checkpoint, given with their roles, as an engine loads them."""
    groups: dict[tuple[str, Kind], list[str]] = {}
    for module, role in roles.items():
        groups.setdefault(_seat(architecture, module, role, roles), []).append(module)
    return [EngineModule(name, kind, roles[parts[0]], tuple(parts)) for (name, kind), parts in groups.items()]


def _seat(architecture: Architecture, module: str, role: str, roles: Mapping[str, str]) -> tuple[str, Kind]:
    parent, _, leaf = module.rpartition(".")
    if role == "routed_experts":
        return parent.rpartition(".")[0], "experts"  # one layer of an engine for all experts
    if role == "head":
        return module, "head"
    for group in architecture.fused:
        if leaf in group and all(f"{parent}.{other}" in roles for other in group):
            return f"{parent}.{FUSED_NAMES.get(group, '+'.join(group))}", "linear"
    return module, "linear"


def quantizes(module: EngineModule, block: Block) -> bool | None:
    """Whether an engine takes a module for quantized; None where it refuses, because fused parts disagree."""
    if not _is_candidate(module, block):
        return False
    ignored = _IGNORES[block.method](module, block.ignore)
    return None if ignored is None else not ignored


def _is_candidate(module: EngineModule, block: Block) -> bool:
    """Whether an engine would quantize the module if no list held it back."""
    if module.role == "vision":
        return block.method == "quark"  # the others never hand the block to the vision tower
    if module.role == "projector":
        return block.method in ("quark", "modelopt")
    if module.kind == "head":
        return block.method == "modelopt" or any(regex_match(module.name, target) for target in block.targets)
    if block.method == "compressed-tensors" and block.targets:
        names = (module.name, *module.parts)
        return any(target in ("Linear", "FusedMoE") or any(regex_match(n, target) for n in names)
                   for target in block.targets)  # fmt: skip
    return True


def regex_match(name: str, pattern: str) -> bool:
    """Match as compressed-tensors and Quark do: the whole name, or `re:` with a regular expression from its start."""
    if not pattern.startswith(_REGEX):
        return name == pattern
    try:
        return re.match(pattern.removeprefix(_REGEX), name) is not None
    except re.error:
        return False  # engines stop with an error; `broken_patterns` names it


def broken_patterns(patterns: Iterable[str]) -> list[str]:
    """Return the patterns that are no regular expressions."""
    broken: list[str] = []
    for pattern in patterns:
        try:
            re.compile(pattern.removeprefix(_REGEX) if pattern.startswith(_REGEX) else "")
        except re.error:
            broken.append(pattern)
    return broken


def modelopt_ignores(module: EngineModule, patterns: Sequence[str]) -> bool | None:
    """Match ModelOpt's list: exactly, then as substrings, then as globs; None where fused parts disagree."""
    patterns = [spelling for pattern in patterns for spelling in _spellings(pattern)]
    exact = _exactly(module, patterns)
    if exact is not False:
        return exact
    return any(pattern in module.name or fnmatchcase(module.name, pattern) for pattern in patterns)


def _spellings(pattern: str) -> tuple[str, ...]:
    """Return `x*` as vLLM reads it for models that rename weights: `x`, a substring from then on, and `x.*`."""
    if pattern.endswith("*") and not pattern.endswith(".*") and len(pattern) > 1:
        return pattern[:-1], f"{pattern[:-1]}.*"
    return (pattern,)


def _exactly(module: EngineModule, patterns: Sequence[str]) -> bool | None:
    if module.name in patterns:
        return True
    if module.kind == "experts":  # one expert in the list takes all of them with it
        return any(module.name in pattern for pattern in patterns)
    if len(module.parts) > 1:
        found = {part in patterns for part in module.parts}
        return found.pop() if len(found) == 1 else None
    if "experts" in module.name:  # shared experts: the same rule, as vLLM asks for the word only
        return any(module.name in pattern for pattern in patterns)
    return False


def compressed_tensors_ignores(module: EngineModule, patterns: Sequence[str]) -> bool | None:
    """Match compressed-tensors' list; the linears of expert 0 decide for all experts."""
    if module.kind == "experts":
        first = [part for part in module.parts if part.startswith(f"{module.name}.0.")]
        return _by_parts(first or module.parts, patterns)
    return _matches(module.name, patterns) or _by_parts(module.parts, patterns)


def quark_ignores(module: EngineModule, patterns: Sequence[str]) -> bool | None:
    """Match Quark's list; a name below `experts` takes all experts with it."""
    if module.kind == "experts":
        below = any(pattern.startswith(f"{module.name}.") for pattern in patterns)
        return below or _matches(module.name, patterns)
    return _matches(module.name, patterns) or _by_parts(module.parts, patterns)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(regex_match(name, pattern) for pattern in patterns)


def _by_parts(parts: Sequence[str], patterns: Sequence[str]) -> bool | None:
    found = {_matches(part, patterns) for part in parts}
    return found.pop() if len(found) == 1 else None


_IGNORES = {
    "modelopt": modelopt_ignores,
    "compressed-tensors": compressed_tensors_ignores,
    "quark": quark_ignores,
    "fp8": _exactly,
}
