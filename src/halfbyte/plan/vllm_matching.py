"""The matching rules by which vLLM's loaders decide which modules are quantized, in checkpoint names.

In vLLM 0.32, ModelOpt's list is matched exactly, as substrings, then as globs. The lists of compressed-tensors and
Quark are matched exactly or, after `re:`, as a regular expression from the start of the name. Fused layers are matched
as one. For some families vLLM renames modules and list entries before it matches. The family lists both
(`fused`, `vllm_renames`). tests/golden/vllm_matching.json records vLLM's decisions.

Configs are untrusted, so regular expressions with exponential run time are rejected. The time of `((a+)+)+!` doubles
with each letter, and Python cannot interrupt a match. Real ignore lists have at most two stars per pattern, not nested.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from re import _constants as codes  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from typing import TYPE_CHECKING, Any, Literal, cast

from halfbyte.families.family import Family

if TYPE_CHECKING:
    from halfbyte.audit.inputs import Contents
    from halfbyte.families.model import Model

_MOST_CHARACTERS = 2_000
_MOST_STARS = 4
_REPEATS = frozenset(cast("Any", (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)))
_Tree = cast("Any", parser).SubPattern
_FEW = 4  # repetitions up to this count are harmless

Kind = Literal["linear", "experts", "head"]

# Class names that targets of compressed-tensors groups may match.
_CLASSES: Mapping[Kind, str] = {"linear": "ParallelLinear", "experts": "RoutedExperts", "head": "ParallelLMHead"}
_REGEX = "re:"
_MATRIX = 2
_MATCHERS = ("modelopt", "compressed-tensors", "quark", "fp8")


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern; None if it is invalid or may take exponential time."""
    if len(pattern) > _MOST_CHARACTERS:
        return None
    try:
        stars = _stars(cast("Any", parser).parse(pattern), inside=False)
        return re.compile(pattern) if stars <= _MOST_STARS else None
    except (re.error, OverflowError, RecursionError, _NestedError):
        return None


class _NestedError(Exception):
    """Raised for a repetition or alternation inside a repetition."""


def _stars(tree: Any, *, inside: bool) -> int:
    """Count the unbounded repetitions."""
    stars = 0
    for code, argument in tree:
        if code in _REPEATS:
            least, most, body = argument
            repeats = most - least > _FEW
            if inside and most > least:
                raise _NestedError
            stars += repeats + _stars(body, inside=inside or most > _FEW)
        elif code is codes.BRANCH:
            if inside:
                raise _NestedError
            stars += sum(_stars(branch, inside=inside) for branch in argument[1])
        else:
            parts = cast("tuple[Any, ...]", argument if isinstance(argument, tuple) else (argument,))
            stars += sum(_stars(part, inside=inside) for part in parts if isinstance(part, _Tree))
    return stars


@dataclass(frozen=True, slots=True)
class EngineModule:
    """A layer in an engine, and the checkpoint modules that it is loaded from."""

    name: str
    kind: Kind
    role: str
    parts: tuple[str, ...]
    renames: tuple[tuple[str, str], ...] | None = None  # by vLLM's model of the family, see `families.family`


@dataclass(frozen=True, slots=True)
class Block:
    """A quantization block as engines read it."""

    method: str
    format: str  # compressed-tensors' format, ModelOpt's quant_algo
    ignore: tuple[str, ...]
    targets: tuple[str, ...]
    static_inputs: bool  # whether engines expect an input scale for each quantized linear

    @property
    def known(self) -> bool:
        """Whether the matching rules of this quantization method are known."""
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
    format = inner.get("quant_algo") or inner.get("format") or (formats[0] if formats else "")
    name = "modelopt" if method.startswith("modelopt") else method
    return Block(name, str(format), tuple(map(str, ignore)), tuple(map(str, targets)), static)


def declares_kv_cache(raw: Mapping[str, Any]) -> bool:
    """Whether engines expect FP8 KV cache scales with this quantization block."""
    inner, export = raw.get("quantization"), raw.get("export")
    merged = {**raw, **cast("Mapping[str, Any]", inner if isinstance(inner, Mapping) else {})}
    groups = cast("Mapping[str, Any]", export).get("kv_cache_group") if isinstance(export, Mapping) else None
    keys = ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_quant_config")
    return bool(groups) or raw.get("quant_method") == "fp8" or any(merged.get(key) for key in keys)


def module_roles(model: Model | Contents) -> dict[str, str]:
    """Return the roles of the modules that engines build with a quantization method."""
    roles = {linear.module: linear.role for linear in model.linears.values()}
    for name, (place, info) in model.plain.items():
        if place.role in ("vision", "projector") and name.endswith(".weight") and len(info.shape) == _MATRIX:
            roles[name.removesuffix(".weight")] = place.role
    return roles


def engine_modules(family: Family, roles: Mapping[str, str]) -> list[EngineModule]:
    """Group the modules of a checkpoint into the layers of an engine."""
    groups: dict[tuple[str, Kind], list[str]] = {}
    for module, role in roles.items():
        groups.setdefault(_engine_layer(family, module, role, roles), []).append(module)
    return [
        EngineModule(name, kind, roles[parts[0]], tuple(parts), family.vllm_renames)
        for (name, kind), parts in groups.items()
    ]


def _engine_layer(family: Family, module: str, role: str, roles: Mapping[str, str]) -> tuple[str, Kind]:
    parent, _, leaf = module.rpartition(".")
    if role == "routed_experts":
        return family.experts_module(module), "experts"  # engines have one layer for all experts
    if role == "head":
        return module, "head"
    for name, group in family.fused.items():
        if leaf in group and all(f"{parent}.{other}" in roles for other in group):
            return f"{parent}.{name}", "linear"
    return module, "linear"


def quantizes(module: EngineModule, block: Block) -> bool | None:
    """Whether an engine treats a module as quantized; None if it raises an error because fused parts disagree."""
    candidate = _is_candidate(module, block)
    if not candidate:
        return candidate
    is_ignored = ignored(module, block)
    return None if is_ignored is None else not is_ignored


def disagreement(module: EngineModule, block: Block, stored: Set[str]) -> str:
    """Describe how an engine would misread a module, given the modules stored quantized; empty if it would not."""
    verdict = quantizes(module, block)
    inside = [part in stored for part in module.parts]
    if any(inside) and not all(inside):
        return f"{module.name}: {sum(inside)} of {len(inside)} linears are quantized, but engines load all or none"
    if verdict is None:
        return f"{module.name}: the list contains some of {', '.join(module.parts[:3])} but not all"
    if verdict == inside[0]:
        return ""
    return f"{module.name} is {'quantized, but ignored' if inside[0] else 'not quantized, and not ignored'}"


def ignored(module: EngineModule, block: Block) -> bool | None:
    """Whether the block's ignore list matches a module; None if fused parts disagree."""
    patterns: Sequence[str] = block.ignore
    if (renames := module.renames) is not None:
        if block.method == "modelopt":
            patterns = [spelling for pattern in patterns for spelling in _spellings(pattern)]
        patterns = [_renamed(pattern, renames) for pattern in patterns]
        parts = tuple(_renamed(part, renames) for part in module.parts)
        module = replace(module, name=_renamed(module.name, renames), parts=parts)
    return _IGNORES[block.method](module, patterns)


def _renamed(name: str, renames: Iterable[tuple[str, str]]) -> str:
    for old, new in renames:
        if name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def _is_candidate(module: EngineModule, block: Block) -> bool | None:
    """Whether an engine would quantize the module without an ignore list; None if it raises an error."""
    if module.role == "vision":
        return block.method == "quark"  # the other methods never apply to the vision tower
    if module.role == "projector":
        return block.method in ("quark", "modelopt")
    if block.method == "compressed-tensors" and (block.targets or module.kind == "head"):
        return _is_targeted(module, block.targets)
    return module.kind != "head" or block.method == "modelopt"


def _is_targeted(module: EngineModule, targets: Sequence[str]) -> bool | None:
    """Whether a compressed-tensors group targets a module by its name, all its parts, or its class."""
    if any(_names_class(target, _CLASSES[module.kind]) for target in targets):
        return True
    if module.kind == "experts":
        return "Linear" in targets or _by_parts(_first_expert(module), targets)
    fused = len(module.parts) > 1 and all(_matches(part, targets) for part in module.parts)
    return fused or _matches(module.name, targets)


def _names_class(target: str, name: str) -> bool:
    return regex_match(name, target) if target.startswith(_REGEX) else target.lower() in name.lower()


def regex_match(name: str, pattern: str) -> bool:
    """Match as in compressed-tensors and Quark: the whole name, or `re:` and a regular expression from its start."""
    if not pattern.startswith(_REGEX):
        return name == pattern
    regex = compiled(pattern.removeprefix(_REGEX))
    return regex is not None and regex.match(name) is not None  # `broken_patterns` reports invalid ones


def broken_patterns(patterns: Iterable[str]) -> list[str]:
    """Return the patterns that are not valid regular expressions or may not terminate."""
    regular = (pattern for pattern in patterns if pattern.startswith(_REGEX))
    return [pattern for pattern in regular if compiled(pattern.removeprefix(_REGEX)) is None]


def modelopt_ignores(module: EngineModule, patterns: Sequence[str]) -> bool | None:
    """Match ModelOpt's list: exactly, then as substrings, then as globs; None if fused parts disagree."""
    exact = _exactly(module, patterns)
    if exact is not False:
        return exact
    return any(pattern in module.name or fnmatchcase(module.name, pattern) for pattern in patterns)


def _spellings(pattern: str) -> tuple[str, ...]:
    """Expand `x*` as vLLM does for models that rename weights: to `x`, which then matches as a substring, and `x.*`."""
    if pattern.endswith("*") and not pattern.endswith(".*") and len(pattern) > 1:
        return pattern[:-1], f"{pattern[:-1]}.*"
    return (pattern,)


def _exactly(module: EngineModule, patterns: Sequence[str]) -> bool | None:
    if module.name in patterns:
        return True
    if module.kind == "experts":  # one expert in the list matches all of them
        return any(module.name in pattern for pattern in patterns)
    if len(module.parts) > 1:
        verdicts = {part in patterns for part in module.parts}
        return verdicts.pop() if len(verdicts) == 1 else None
    if "experts" in module.name:  # same rule for shared experts: vLLM only tests for the word
        return any(module.name in pattern for pattern in patterns)
    return False


def compressed_tensors_ignores(module: EngineModule, patterns: Sequence[str]) -> bool | None:
    """Match compressed-tensors' list; the linears of expert 0 determine the result for all experts."""
    if module.kind == "experts":
        return _by_parts(_first_expert(module), patterns)
    return _matches(module.name, patterns) or _by_parts(module.parts, patterns)


def _first_expert(module: EngineModule) -> Sequence[str]:
    return [part for part in module.parts if part.startswith(f"{module.name}.0.")] or module.parts


def quark_ignores(module: EngineModule, patterns: Sequence[str]) -> bool | None:
    """Match Quark's list; a name below `experts` matches all experts."""
    if module.kind == "experts":
        below = any(pattern.startswith(f"{module.name}.") for pattern in patterns)
        return below or _matches(module.name, patterns)
    return _matches(module.name, patterns) or _by_parts(module.parts, patterns)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(regex_match(name, pattern) for pattern in patterns)


def _by_parts(parts: Sequence[str], patterns: Sequence[str]) -> bool | None:
    verdicts = {_matches(part, patterns) for part in parts}
    return verdicts.pop() if len(verdicts) == 1 else None


_IGNORES = {
    "modelopt": modelopt_ignores,
    "compressed-tensors": compressed_tensors_ignores,
    "quark": quark_ignores,
    "fp8": _exactly,
}
