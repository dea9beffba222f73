"""Checks that need headers and config alone: structure, coverage, the ignore list, the index, the config.

Each is a function of the evidence that returns findings. They know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from halfbyte.audit.evidence import BLOCK, Evidence
from halfbyte.audit.findings import RUN_AGAIN, Finding, bad, count, good, note
from halfbyte.audit.matchers import (
    Block,
    broken_patterns,
    disagreement,
    engine_modules,
    module_roles,
    read_block,
)
from halfbyte.errors import CheckpointError
from halfbyte.models.linears import StoredLinear
from halfbyte.models.model import describe
from halfbyte.numerics.formats import FORMATS
from halfbyte.plan.engine_config import MODELOPT_FILE, output_config
from halfbyte.plan.rules import DECODE, ENCODE, KEEP
from halfbyte.source.checkpoint import CONFIG, INDEX, shard_path
from halfbyte.source.foreign import read_json
from halfbyte.write import PART

UNQUANTIZED = frozenset(("bf16", "f16", "f32"))
INPUT_SCALES: Mapping[str, str] = {"nvfp4": "input_scale", "nvfp4_ct": "input_global_scale"}
_ENOUGH = 1000  # shards that are not there: looking for more would take longer than saying so
_FLOATS = frozenset(("BF16", "F16", "F32"))


def quantized(evidence: Evidence) -> list[StoredLinear]:
    """Return the linears that are stored in a quantized format."""
    return [linear for linear in evidence.model.linears.values() if linear.format not in UNQUANTIZED]


def effective_block(evidence: Evidence) -> Mapping[str, Any] | None:
    """Return the quantization block that vLLM would read: top level, ModelOpt's own file, then the text model's."""
    config = evidence.checkpoint.config
    if isinstance(config.get(BLOCK), dict):
        return config[BLOCK]
    return modelopt_block(evidence) or nested_block(evidence)


def modelopt_block(evidence: Evidence) -> Mapping[str, Any] | None:
    """Return what ModelOpt's own file says, where there is one."""
    try:
        found = read_json(evidence.root / MODELOPT_FILE)
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def nested_block(evidence: Evidence) -> Mapping[str, Any] | None:
    """Return the block inside the text model's config."""
    key = evidence.contents.architecture.text_config if evidence.contents else None
    text = evidence.checkpoint.config.get(key) if key else None
    block = cast("dict[str, Any]", text).get(BLOCK) if isinstance(text, dict) else None
    return cast("dict[str, Any]", block) if isinstance(block, dict) else None


def structure(evidence: Evidence) -> list[Finding]:
    """Every tensor that must be there is, with its dtype and shape, and nothing else is."""
    wrong = _unlike_plan(evidence) if evidence.plan else list(evidence.model.problems)
    if not wrong and (error := _agreement(evidence)) is not None and error.where != CONFIG:
        wrong = [error.what]
    if wrong:
        why = "engines stop at a tensor they do not know, and fill one they do not find with whatever is in memory"
        text = f"{count(len(wrong), 'tensor')} missing, left over or misshapen"
        return [bad("structure", text, why=why, fix=RUN_AGAIN, examples=wrong)]
    if lacking := _without_input_scale(evidence):
        text = f"{count(len(lacking), 'linear')} without the input scale that config.json promises"
        why = "vLLM leaves it uninitialised and computes NaN for some prompts (vllm #45212)"
        return [
            bad("structure", text, why=why, fix="calibrate over all experts, and write it for each", examples=lacking)
        ]
    linears, tensors = len(evidence.model.linears), len(evidence.checkpoint.tensors)
    said = "as planned" if evidence.plan else "each linear whole in one format"
    return [good("structure", f"{tensors:,} tensors, {linears:,} linears: {said}; nothing extra")]


def _unlike_plan(evidence: Evidence) -> list[str]:
    assert evidence.plan is not None
    expected = {spec.name: spec for job in evidence.plan.jobs for spec in job.outputs}
    found = evidence.checkpoint.tensors
    unread = {t.name for s in evidence.plan.shards if s.name in evidence.unreadable for t in s.tensors}  # see `bytes`
    wrong = [f"{name} is missing" for name in expected if name not in found and name not in unread]
    wrong += [f"{name} is not in the plan" for name in found if name not in expected]
    for name, spec in expected.items():
        info = found.get(name)
        if info is not None and (info.dtype, info.shape) != (spec.dtype, spec.shape):
            wrong.append(f"{name} is {info.dtype} {list(info.shape)}, planned {spec.dtype} {list(spec.shape)}")
    return wrong


def _agreement(evidence: Evidence) -> CheckpointError | None:
    """Return what layers, experts and widths say against each other or against config.json."""
    if evidence.model.problems or evidence.unreadable:
        return None
    try:
        describe(evidence.checkpoint, uneven=True)
    except CheckpointError as error:
        return error
    return None


def _without_input_scale(evidence: Evidence) -> list[str]:
    raw = effective_block(evidence)
    if raw is None or not read_block(raw).static_inputs:
        return []
    return [x.module for x in quantized(evidence) if (s := INPUT_SCALES.get(x.format)) and s not in x.parts]


def coverage(evidence: Evidence) -> list[Finding]:
    """What the recipe quantizes is in its format, all of it; what it keeps is not."""
    assert evidence.made is not None
    recipe = evidence.made.recipe
    target = recipe.quantize.format if recipe.quantize else ""
    roles = cast("Mapping[str, str]", recipe.roles)
    sources = {linear.module: linear for job in (evidence.plan.jobs if evidence.plan else ()) for linear in job.linears}
    wrong: list[str] = []
    done: dict[str, int] = {}
    for linear in evidence.model.linears.values():
        action = roles.get(linear.role, KEEP)
        source = sources.get(linear.module)
        wanted = {ENCODE: target, DECODE: "bf16", KEEP: source.format if source else None}[action]
        if (wanted is None and linear.format == target) or (wanted is not None and linear.format != wanted):
            wrong.append(f"{linear.module} is {linear.format}, the recipe says {wanted or action}")
        elif action != KEEP:
            done[linear.role] = done.get(linear.role, 0) + 1
    for name, (place, info) in evidence.model.plain.items():
        if place.role != "other_buffers" and info.dtype not in _FLOATS:
            wrong.append(f"{name} is {info.dtype}, but a {place.role} is never quantized")
    if wrong:
        why = "the checkpoint is not what its recipe says: its size, speed and quality are those of something else"
        return [
            bad(
                "coverage",
                f"{count(len(wrong), 'module')} not as the recipe says",
                why=why,
                fix=RUN_AGAIN,
                examples=wrong,
            )
        ]
    said = ", ".join(f"{role.replace('_', ' ')} 100 % {target or 'bf16'} ({n:,})" for role, n in done.items())
    return [good("coverage", f"{said or 'nothing quantized'}; nothing quantized that the recipe keeps")]


def ignore(evidence: Evidence) -> list[Finding]:
    """Every module is quantized or ignored, never both or neither, by the engine's own matching rules."""
    raw = effective_block(evidence)
    if raw is None:
        return [good("ignore", "no quantization block, so no list to match")]
    block = read_block(raw)
    if not block.known:
        return [note("ignore", f"not checked: halfbyte knows no loader for quant_method '{block.method}'")]
    if broken := broken_patterns(block.ignore):
        return [bad("ignore", "patterns that are no regular expressions", why="engines stop while reading config.json",
                    fix="correct them in the recipe's ignore_patterns", examples=broken)]  # fmt: skip
    stored = {linear.module for linear in quantized(evidence)}
    modules = engine_modules(evidence.model.architecture, module_roles(evidence.model))
    wrong = [said for module in modules if (said := disagreement(module, block, stored))]
    if wrong:
        why = "engines build a module by the list and fill it by the tensors: it fails to load, or loads as noise"
        fix = f"change the list in config.json ({block.method} matching), or quantize what it leaves out"
        return [
            bad(
                "ignore",
                f"list and tensors disagree on {count(len(wrong), 'module')}",
                why=why,
                fix=fix,
                examples=wrong,
            )
        ]
    number = sum(1 for module in modules if set(module.parts) <= stored)
    text = f"{number:,} engine modules quantized, {len(modules) - number:,} ignored, as {block.method} matches"
    return [good("ignore", text)]


def index(evidence: Evidence) -> list[Finding]:
    """The index names every tensor in its shard and their total; no half-written or forgotten file lies about."""
    wrong = [evidence.problems[INDEX]] if INDEX in evidence.problems else []
    tensors, shards = evidence.checkpoint.tensors, {*evidence.checkpoint.shards, *evidence.unreadable}
    if evidence.index is not None:
        wrong += _index_problems(evidence, evidence.index)
    elif len(shards) > 1 and not wrong:
        wrong.append(f"{len(shards)} shards, but no {INDEX}")
    planned: Mapping[str, int] = evidence.made.shards if evidence.made else {}
    wrong += [
        f"{shard} is in the folder, but not in the plan" for shard in sorted(shards) if planned and shard not in planned
    ]
    wrong += [f"{path.relative_to(evidence.root)} was left by a run that stopped"
              for path in sorted(evidence.root.rglob(f"*{PART}"))]  # fmt: skip
    if wrong:
        why = "engines read the index, not the folder: they miss a tensor, or load a stale one"
        return [bad("index", "index and folder disagree", why=why, fix=RUN_AGAIN, examples=wrong)]
    where = f"{len(shards)} shards" if len(shards) > 1 else "one shard"
    return [good("index", f"{len(tensors):,} tensors in {where}, {evidence.checkpoint.nbytes:,} bytes; no stale files")]


def _index_problems(evidence: Evidence, found: Mapping[str, Any]) -> list[str]:
    tensors = evidence.checkpoint.tensors
    weight_map = cast("dict[str, Any]", found.get("weight_map") if isinstance(found.get("weight_map"), dict) else {})
    wrong: list[str] = []
    for shard in sorted({str(shard) for shard in weight_map.values()}):
        try:
            shard_path(evidence.root, shard)
        except CheckpointError as error:
            wrong.append(error.what)
            if len(wrong) == _ENOUGH:
                return wrong
    readable = evidence.checkpoint.shards
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            wrong.append(f"the index gives {name} no file name")
        elif shard in readable and (name not in tensors or tensors[name].shard != shard):
            wrong.append(f"{name} is not in {shard}, where the index has it")
    wrong += [f"{name} is not in the index" for name in tensors if name not in weight_map]
    metadata = found.get("metadata")
    total = cast("dict[str, Any]", metadata).get("total_size") if isinstance(metadata, dict) else None
    if not evidence.unreadable and total != evidence.checkpoint.nbytes and (total is not None or evidence.made):
        wrong.append(f"total_size is {total}, the tensors have {evidence.checkpoint.nbytes:,} bytes")
    return wrong


# What the block must say for each stored format: quant_method, and format or quant_algo.
_METHODS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "int4": (("compressed-tensors", "pack-quantized"),),
    "fp8_block": (("fp8", ""), ("compressed-tensors", "float-quantized")),
    "fp8_channel": (("compressed-tensors", "float-quantized"),),
    "nvfp4": (("modelopt", "NVFP4"), ("modelopt", "W4A16_NVFP4")),
    "nvfp4_ct": (("compressed-tensors", "nvfp4-pack-quantized"),),
    "mxfp4": (("quark", ""),),
    "mxfp4_ct": (("compressed-tensors", "mxfp4-pack-quantized"),),
}


def config(evidence: Evidence) -> list[Finding]:
    """config.json has one quantization block, of the method that the tensors are stored for, and counts as they do."""
    if CONFIG in evidence.problems:
        fix = "run the command that made it again: config.json is written last" if evidence.made else "download it"
        return [bad("config", evidence.problems[CONFIG], why="no engine loads a folder without it", fix=fix)]
    wrong = _block_problems(evidence)
    if (error := _agreement(evidence)) is not None and error.where == CONFIG:
        wrong.append(error.what)
    if evidence.plan is not None:
        wrong += _changed_keys(evidence)
    if wrong:
        why = "engines choose loaders and shapes by config.json, and read a stale block as gladly as the right one"
        return [bad("config", "config.json and the tensors disagree", why=why, fix=RUN_AGAIN, examples=wrong)]
    raw = effective_block(evidence)
    said = f"quant_method {read_block(raw).method}" if raw else "no quantization block"
    return [
        good(
            "config",
            f"{said}; layers, experts and widths agree"
            + ("; all other keys as in the source" if evidence.plan else ""),
        )
    ]


def _block_problems(evidence: Evidence) -> list[str]:
    wrong: list[str] = []
    top, nested = evidence.checkpoint.config.get(BLOCK), nested_block(evidence)
    changed = evidence.made is not None and (
        evidence.made.recipe.quantize or DECODE in evidence.made.recipe.roles.values()
    )
    if nested is not None and (top is not None or changed):
        wrong.append(f"{evidence.model.architecture.text_config}.{BLOCK} is stale: SGLang copies it to the top")
    formats = sorted({linear.format for linear in quantized(evidence)})
    raw = effective_block(evidence)
    if formats and raw is None:
        return [*wrong, f"the experts are {', '.join(formats)}, but there is no {BLOCK}"]
    if raw is None or (wrong and raw is nested):
        return wrong
    if not formats:
        return [*wrong, f"there is a {BLOCK}, but nothing is quantized"]
    block = read_block(raw)
    for name in formats:
        if not any(block.method == method and said in ("", block.format) for method, said in _METHODS[name]):
            said = f"quant_method {block.method!r}, format {block.format!r}"
            wrong.append(f"tensors are {FORMATS[name].title}, but the block says {said}")
    return wrong + _modelopt_problems(evidence, block)


def _modelopt_problems(evidence: Evidence, block: Block) -> list[str]:
    """Return what ModelOpt's own file says against the block: older engines read the one, newer ones the other."""
    if not (evidence.root / MODELOPT_FILE).exists():
        return []
    if block.method != "modelopt":
        return [f"{MODELOPT_FILE} is stale: it is ModelOpt's, and the block is {block.method}'s"]
    raw = modelopt_block(evidence)
    other = read_block(raw) if raw else None
    if other is None or (other.format, set(other.ignore)) != (block.format, set(block.ignore)):
        return [f"{MODELOPT_FILE} has another format or another list than config.json"]
    return []


def _changed_keys(evidence: Evidence) -> list[str]:
    """Return the keys that are not as the plan writes them; the ignore list has a check of its own."""
    assert evidence.plan is not None
    lists = {f"{BLOCK}.ignore", f"{BLOCK}.exclude"}
    wanted, found = _flat(output_config(evidence.plan)), _flat(evidence.checkpoint.config)
    keys = [key for key in (*wanted, *(key for key in found if key not in wanted)) if key not in lists]
    stale = f"{evidence.model.architecture.text_config}.{BLOCK}"
    changed = [key for key in keys if wanted.get(key, _ABSENT) != found.get(key, _ABSENT) and not key.startswith(stale)]
    return [f"{key} is {_shown(found, key)}, not {_shown(wanted, key)}" for key in changed]


_ABSENT = object()


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested keys as dotted ones."""
    found: dict[str, Any] = {}
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            found |= _flat(cast("dict[str, Any]", entry), f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = entry
    return found
