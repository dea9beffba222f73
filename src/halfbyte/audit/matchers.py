"""Which modules an engine takes for quantized: the matching rules of vLLM's loaders, in checkpoint names.

vLLM 0.32: ModelOpt's list is matched exactly, as substrings, then as globs; compressed-tensors' and Quark's exactly or,
after `re:`, as a regular expression from the start of the name. Layers that are loaded as one are decided as one. For
some families vLLM renames modules and lists before it matches. What it answers is recorded in
tests/golden/vllm_matching.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, cast

from halfbyte.audit.patterns import compiled
from halfbyte.models.architecture import Architecture

if TYPE_CHECKING:
    from halfbyte.audit.evidence import Contents
    from halfbyte.models.model import Model

Kind = Literal["linear", "experts", "head"]

# What engines call the linears that they load into one tensor.
FUSED_NAMES: Mapping[tuple[str, ...], str] = {
    ("gate_proj", "up_proj"): "gate_up_proj",
    ("q_a_proj", "kv_a_proj_with_mqa"): "fused_qkv_a_proj",
    ("q_proj", "k_proj", "v_proj"): "qkv_proj",
}
# What each family's model in vLLM renames, by the start of a name; a family that is not here has no such table at all.
_RENAMES: Mapping[str, Mapping[str, str]] = {
    "kimi-k25": {
        "language_model.layers.": "language_model.model.layers.",
        "mm_projector.proj.0": "mm_projector.linear_1",
        "mm_projector.proj.2": "mm_projector.linear_2",
    },
    "qwen3-moe": {},
}
# By whose names compressed-tensors' groups may take a module.
_CLASSES: Mapping[Kind, str] = {"linear": "ParallelLinear", "experts": "RoutedExperts", "head": "ParallelLMHead"}
_REGEX = "re:"
_MATRIX = 2
_MATCHERS = ("modelopt", "compressed-tensors", "quark", "fp8")


@dataclass(frozen=True, slots=True)
class EngineModule:
    """A layer as an engine builds it, and the modules of the checkpoint that it is loaded from."""

    name: str
    kind: Kind
    role: str
    parts: tuple[str, ...]
    family: str = ""  # the name of its architecture


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


def module_roles(model: Model | Contents) -> dict[str, str]:
    """Return the modules that an engine builds with a quantization method, with their roles."""
    roles = {linear.module: linear.role for linear in model.linears.values()}
    for name, (place, info) in model.plain.items():
        if place.role in ("vision", "projector") and name.endswith(".weight") and len(info.shape) == _MATRIX:
            roles[name.removesuffix(".weight")] = place.role
    return roles


def engine_modules(architecture: Architecture, roles: Mapping[str, str]) -> list[EngineModule]:
    """Group the modules of a checkpoint, given with their roles, as an engine loads them."""
    groups: dict[tuple[str, Kind], list[str]] = {}
    for module, role in roles.items():
        groups.setdefault(_seat(architecture, module, role, roles), []).append(module)
    family = architecture.name
    return [EngineModule(name, kind, roles[parts[0]], tuple(parts), family) for (name, kind), parts in groups.items()]


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
    candidate = _is_candidate(module, block)
    if not candidate:
        return candidate
    held_back = ignored(module, block)
    return None if held_back is None else not held_back


def disagreement(module: EngineModule, block: Block, stored: Set[str]) -> str:
    """Say how an engine would misread a module, given what is stored quantized; nothing if it would not."""
    verdict = quantizes(module, block)
    inside = [part in stored for part in module.parts]
    if any(inside) and not all(inside):
        return f"{module.name}: {sum(inside)} of {len(inside)} linears are quantized; engines load all or none"
    if verdict is None:
        return f"{module.name}: the list names some of {', '.join(module.parts[:3])} and not the others"
    if verdict == inside[0]:
        return ""
    return f"{module.name} is {'quantized, but ignored' if inside[0] else 'not quantized, and not ignored'}"


def ignored(module: EngineModule, block: Block) -> bool | None:
    """Whether the block's list holds a module back; None where fused parts disagree."""
    patterns: Sequence[str] = block.ignore
    if module.family in _RENAMES:
        if block.method == "modelopt":
            patterns = [spelling for pattern in patterns for spelling in _spellings(pattern)]
        patterns = [_renamed(pattern, module.family) for pattern in patterns]
        parts = tuple(_renamed(part, module.family) for part in module.parts)
        module = replace(module, name=_renamed(module.name, module.family), parts=parts)
    return _IGNORES[block.method](module, patterns)


def _renamed(name: str, family: str) -> str:
    for old, new in _RENAMES[family].items():
        if name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def _is_candidate(module: EngineModule, block: Block) -> bool | None:
    """Whether an engine would quantize the module if no list held it back; None where it refuses."""
    if module.role == "vision":
        return block.method == "quark"  # the others never hand the block to the vision tower
    if module.role == "projector":
        return block.method in ("quark", "modelopt")
    if block.method == "compressed-tensors" and (block.targets or module.kind == "head"):
        return _is_targeted(module, block.targets)
    return module.kind != "head" or block.method == "modelopt"


def _is_targeted(module: EngineModule, targets: Sequence[str]) -> bool | None:
    """Whether one of compressed-tensors' groups takes a module: by its name, by all its parts, or by its class."""
    if any(_names_class(target, _CLASSES[module.kind]) for target in targets):
        return True
    if module.kind == "experts":
        return "Linear" in targets or _by_parts(_first_expert(module), targets)
    fused = len(module.parts) > 1 and all(_matches(part, targets) for part in module.parts)
    return fused or _matches(module.name, targets)


def _names_class(target: str, name: str) -> bool:
    return regex_match(name, target) if target.startswith(_REGEX) else target.lower() in name.lower()


def regex_match(name: str, pattern: str) -> bool:
    """Match as compressed-tensors and Quark do: the whole name, or `re:` with a regular expression from its start."""
    if not pattern.startswith(_REGEX):
        return name == pattern
    found = compiled(pattern.removeprefix(_REGEX))
    return found is not None and found.match(name) is not None  # engines stop with an error; `broken_patterns` names it


def broken_patterns(patterns: Iterable[str]) -> list[str]:
    """Return the patterns that are no regular expressions, or such that may never end."""
    regular = (pattern for pattern in patterns if pattern.startswith(_REGEX))
    return [pattern for pattern in regular if compiled(pattern.removeprefix(_REGEX)) is None]


def modelopt_ignores(module: EngineModule, patterns: Sequence[str]) -> bool | None:
    """Match ModelOpt's list: exactly, then as substrings, then as globs; None where fused parts disagree."""
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
        return _by_parts(_first_expert(module), patterns)
    return _matches(module.name, patterns) or _by_parts(module.parts, patterns)


def _first_expert(module: EngineModule) -> Sequence[str]:
    return [part for part in module.parts if part.startswith(f"{module.name}.0.")] or module.parts


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
