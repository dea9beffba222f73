"""Checks that need only headers and config: structure, coverage, ignore list, index and config.

Each is an independent function from the evidence to findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from halfbyte.audit.derive_plan import Derived
from halfbyte.audit.findings import RUN_AGAIN, Finding, bad, count, good, note
from halfbyte.audit.inputs import (
    BLOCK,
    Evidence,
    modelopt_block,
    nested_block,
    quantization_block,
)
from halfbyte.checkpoint.atomic_write import PART
from halfbyte.checkpoint.folder import CONFIG, INDEX, shard_path
from halfbyte.errors import CheckpointError
from halfbyte.families.linears import PLAIN, StoredLinear
from halfbyte.families.model import describe
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.quantization_config import MODELOPT_FILE, output_config
from halfbyte.plan.rules import DECODE, ENCODE, KEEP
from halfbyte.plan.vllm_matching import (
    Block,
    broken_patterns,
    declares_kv_cache,
    disagreement,
    engine_modules,
    module_roles,
    read_block,
)

_ENOUGH = 1000  # missing shards to report before stopping
_FLOATS = frozenset(("BF16", "F16", "F32"))


def quantized(evidence: Evidence) -> list[StoredLinear]:
    """Return the linears stored in a quantized format."""
    return [linear for linear in evidence.model.linears.values() if linear.format not in PLAIN]


def effective_block(evidence: Evidence) -> Mapping[str, Any] | None:
    """Return the quantization block that vLLM would read."""
    return quantization_block(evidence.checkpoint, _text_config(evidence))


def _text_config(evidence: Evidence) -> str | None:
    return evidence.contents.family.text_config if evidence.contents else None


def _nested(evidence: Evidence) -> Mapping[str, Any] | None:
    return nested_block(evidence.checkpoint.config, _text_config(evidence))


def structure(evidence: Evidence) -> list[Finding]:
    """Check that exactly the expected tensors exist, with their dtypes and shapes."""
    if stale := _stale_kv_scales(evidence):
        text = f"{count(len(stale), 'scale')} of an FP8 KV cache that config.json does not declare"
        why = "they belong to another quantization config; engines skip them or apply them by name"
        return [bad("structure", text, why=why, fix=RUN_AGAIN, examples=stale)]
    wrong = _unlike_plan(evidence) if evidence.plan else list(evidence.model.problems)
    if not wrong and (error := _agreement(evidence)) is not None and error.where != CONFIG:
        wrong = [error.what]
    if wrong:
        why = "engines fail on unknown tensors and leave missing ones uninitialized"
        text = f"{count(len(wrong), 'tensor')} missing, unexpected or of wrong shape"
        return [bad("structure", text, why=why, fix=RUN_AGAIN, examples=wrong)]
    if lacking := _without_input_scale(evidence):
        text = f"{count(len(lacking), 'linear')} without the input scale that config.json declares"
        why = "vLLM leaves it uninitialized and computes NaN for some prompts (vllm #45212)"
        return [
            bad("structure", text, why=why, fix="calibrate all experts, and write a scale for each", examples=lacking)
        ]
    linears, tensors = len(evidence.model.linears), len(evidence.checkpoint.tensors)
    verdict = "as planned" if evidence.plan else "all complete"
    return [good("structure", f"{tensors:,} tensors, {linears:,} linears: {verdict}; nothing extra")]


def _unlike_plan(evidence: Evidence) -> list[str]:
    assert evidence.plan is not None
    expected = {spec.name: spec for job in evidence.plan.jobs for spec in job.outputs}
    tensors = evidence.checkpoint.tensors
    unread = {t.name for s in evidence.plan.shards if s.name in evidence.unreadable for t in s.tensors}  # see `bytes`
    wrong = [f"{name} is missing" for name in expected if name not in tensors and name not in unread]
    wrong += [f"{name} is not in the plan" for name in tensors if name not in expected]
    identified = _identified(evidence)
    for name, spec in expected.items():
        info = tensors.get(name)
        if info is not None and (info.dtype, info.shape) != (spec.dtype, spec.shape) and name not in identified:
            wrong.append(f"{name} is {info.dtype} {list(info.shape)}, planned {spec.dtype} {list(spec.shape)}")
    return wrong


def _identified(evidence: Evidence) -> set[str]:
    """Return the tensors of encoded linears, whose dtypes and shapes may vary between tools within the format."""
    if evidence.derived is None:
        return set()
    jobs = [job for job in evidence.derived.plan.jobs if job.action == ENCODE]
    planned = {linear.module: linear for job in jobs for linear in job.linears}
    return {
        f"{module}.{suffix}"
        for module, linear in planned.items()
        if (stored := evidence.model.linears.get(module)) is not None and stored.shape == linear.shape
        for suffix in stored.parts
    }


def _agreement(evidence: Evidence) -> CheckpointError | None:
    """Return the first contradiction between layers, experts, widths and config.json."""
    if evidence.model.problems or evidence.unreadable:
        return None
    try:
        describe(evidence.checkpoint, uneven=True)
    except CheckpointError as error:
        return error
    return None


def _stale_kv_scales(evidence: Evidence) -> list[str]:
    """Return KV cache scales that no quantization block declares."""
    scales = [name for name in evidence.checkpoint.tensors if name.endswith((".k_scale", ".v_scale"))]
    blocks = [evidence.checkpoint.config.get(BLOCK), modelopt_block(evidence.root), _nested(evidence)]
    if not scales or any(declares_kv_cache(cast("Mapping[str, Any]", raw)) for raw in blocks if isinstance(raw, dict)):
        return []
    return scales


def _without_input_scale(evidence: Evidence) -> list[str]:
    raw = effective_block(evidence)
    if raw is None or not read_block(raw).static_inputs:
        return []
    scales = ((linear, FORMATS[linear.format].input_scale_suffix) for linear in quantized(evidence))
    return [linear.module for linear, suffix in scales if suffix is not None and suffix not in linear.parts]


def coverage(evidence: Evidence) -> list[Finding]:
    """Check that all linears that the recipe quantizes have its format, and kept ones do not."""
    recipe = evidence.recipe
    assert recipe is not None
    target = recipe.quantize.format if recipe.quantize else ""
    roles = cast("Mapping[str, str]", recipe.roles)
    sources = {linear.module: linear for job in (evidence.plan.jobs if evidence.plan else ()) for linear in job.linears}
    wrong: list[str] = []
    done: dict[str, int] = {}
    for linear in evidence.model.linears.values():
        action = roles.get(linear.role, KEEP)
        source = sources.get(linear.module)
        expected = {ENCODE: target, DECODE: "bf16", KEEP: source.format if source else None}[action]
        if (expected is None and linear.format == target) or (expected is not None and linear.format != expected):
            wrong.append(f"{linear.module} is {linear.format}, the recipe says {expected or action}")
        elif action != KEEP:
            done[linear.role] = done.get(linear.role, 0) + 1
    for name, (place, info) in evidence.model.plain.items():
        if place.role != "other_buffers" and info.dtype not in _FLOATS:
            wrong.append(f"{name} is {info.dtype}, but a {place.role} is never quantized")
    if wrong:
        why = "size, speed and quality are not those of the recipe"
        return [
            bad(
                "coverage",
                f"{count(len(wrong), 'module')} not in the recipe's format",
                why=why,
                fix=RUN_AGAIN,
                examples=wrong,
            )
        ]
    shares = ", ".join(f"{role.replace('_', ' ')} 100 % {target or 'bf16'} ({n:,})" for role, n in done.items())
    return [good("coverage", f"{shares or 'nothing quantized'}; nothing quantized that the recipe keeps")]


def ignore(evidence: Evidence) -> list[Finding]:
    """Check that every module is either quantized or ignored by the engine's matching rules."""
    raw = effective_block(evidence)
    if raw is None:
        return [good("ignore", "no quantization block, so no ignore list")]
    block = read_block(raw)
    if not block.known:
        return [note("ignore", f"not checked: unknown quant_method '{block.method}'")]
    if broken := broken_patterns(block.ignore):
        return [bad("ignore", "invalid regular expressions in the list", why="engines fail while reading config.json",
                    fix="correct them in the recipe's ignore_patterns", examples=broken)]  # fmt: skip
    stored = {linear.module for linear in quantized(evidence)}
    modules = engine_modules(evidence.model.family, module_roles(evidence.model))
    wrong = [reason for module in modules if (reason := disagreement(module, block, stored))]
    if wrong:
        why = "engines build modules by the list: a mismatch fails to load, or loads garbage"
        fix = f"change the list in config.json ({block.method} matching), or quantize the modules that are not in it"
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
    """Check that the index lists every tensor with its shard and the total size, and that there are no stale files."""
    wrong = [evidence.problems[INDEX]] if INDEX in evidence.problems else []
    tensors, shards = evidence.checkpoint.tensors, {*evidence.checkpoint.shards, *evidence.unreadable}
    if evidence.index is not None:
        wrong += _index_problems(evidence, evidence.index)
    elif len(shards) > 1 and not wrong:
        wrong.append(f"{len(shards)} shards, but no {INDEX}")
    planned: Mapping[str, int] = evidence.recorded.shards if evidence.recorded else {}
    wrong += [
        f"{shard} is in the folder, but not in the plan" for shard in sorted(shards) if planned and shard not in planned
    ]
    wrong += [f"{path.relative_to(evidence.root)} was left by an interrupted run"
              for path in sorted(evidence.root.rglob(f"*{PART}"))]  # fmt: skip
    if wrong:
        why = "engines read the index, not the folder: they would miss a tensor or load a stale one"
        return [bad("index", "index and folder disagree", why=why, fix=RUN_AGAIN, examples=wrong)]
    where = f"{len(shards)} shards" if len(shards) > 1 else "one shard"
    return [good("index", f"{len(tensors):,} tensors in {where}, {evidence.checkpoint.nbytes:,} bytes; no stale files")]


def _index_problems(evidence: Evidence, content: Mapping[str, Any]) -> list[str]:
    tensors, raw_map = evidence.checkpoint.tensors, content.get("weight_map")
    weight_map = cast("dict[str, Any]", raw_map if isinstance(raw_map, dict) else {})
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
            wrong.append(f"the index has no file name for {name}")
        elif shard in readable and (name not in tensors or tensors[name].shard != shard):
            wrong.append(f"{name} is not in {shard}, contrary to the index")
    wrong += [f"{name} is not in the index" for name in tensors if name not in weight_map]
    metadata = content.get("metadata")
    total = cast("dict[str, Any]", metadata).get("total_size") if isinstance(metadata, dict) else None
    if not evidence.unreadable and total != evidence.checkpoint.nbytes and (total is not None or evidence.recorded):
        wrong.append(f"total_size is {total}, the tensors have {evidence.checkpoint.nbytes:,} bytes")
    return wrong


def config(evidence: Evidence) -> list[Finding]:
    """Check that config.json has one quantization block that matches the tensors, and the right counts."""
    if CONFIG in evidence.problems:
        fix = "repeat the command that created it: config.json is written last" if evidence.recorded else "download it"
        return [bad("config", evidence.problems[CONFIG], why="engines cannot load a folder without it", fix=fix)]
    wrong = _block_problems(evidence)
    if (error := _agreement(evidence)) is not None and error.where == CONFIG:
        wrong.append(error.what)
    if evidence.plan is not None:
        wrong += changed_keys(evidence)
    if wrong:
        why = "engines select loaders and shapes by config.json, even from a stale block"
        return [bad("config", "config.json and the tensors disagree", why=why, fix=RUN_AGAIN, examples=wrong)]
    raw = effective_block(evidence)
    method = f"quant_method {read_block(raw).method}" if raw else "no quantization block"
    return [
        good(
            "config",
            f"{method}; layers, experts and widths agree"
            + ("; all other keys as in the source" if evidence.plan else ""),
        )
    ]


def _block_problems(evidence: Evidence) -> list[str]:
    wrong: list[str] = []
    top, nested = evidence.checkpoint.config.get(BLOCK), _nested(evidence)
    recipe = evidence.recipe
    changed = recipe is not None and (recipe.quantize or DECODE in recipe.roles.values())
    if nested is not None and (top is not None or changed):
        wrong.append(f"{evidence.model.family.text_config}.{BLOCK} is stale: SGLang copies it to the top")
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
        if not any(block.method == row.method and row.name in ("", block.format) for row in FORMATS[name].declared):
            declared = f"quant_method {block.method!r}, format {block.format!r}"
            wrong.append(f"tensors are {FORMATS[name].title}, but the block says {declared}")
    if any(_ignores_input_scale(linear, block) for linear in quantized(evidence)):
        wrong.append(f"the block says {block.format}, which ignores the stored input scales")
    return wrong + _modelopt_problems(evidence, block)


def _ignores_input_scale(linear: StoredLinear, block: Block) -> bool:
    """Whether a linear has an input scale that the block does not make engines use."""
    format = FORMATS[linear.format]
    weights_only = any(row.weights_only and row.name == block.format for row in format.declared)
    return weights_only and format.input_scale_suffix in linear.parts


def _modelopt_problems(evidence: Evidence, block: Block) -> list[str]:
    """Return contradictions between ModelOpt's own file, which older engines read, and the block."""
    if not (evidence.root / MODELOPT_FILE).exists():
        return []
    if block.method != "modelopt":
        return [f"{MODELOPT_FILE} is stale: the block's quant_method is {block.method}"]
    raw = modelopt_block(evidence.root)
    other = read_block(raw) if raw else None
    if other is None or (other.format, set(other.ignore)) != (block.format, set(block.ignore)):
        return [f"{MODELOPT_FILE} has a different format or list than config.json"]
    return []


def changed_keys(evidence: Evidence) -> list[str]:
    """Return the keys that differ from the planned config; the ignore list has its own check."""
    assert evidence.plan is not None
    lists = {f"{BLOCK}.ignore", f"{BLOCK}.exclude"}
    planned, stored = flat_config(output_config(evidence.plan)), flat_config(evidence.checkpoint.config)
    keys = [key for key in (*planned, *(key for key in stored if key not in planned)) if key not in lists]
    if evidence.derived is not None:
        keys = [key for key in keys if not _is_free(key, planned, stored, evidence.derived)]
    stale = f"{evidence.model.family.text_config}.{BLOCK}"
    different = [key for key in keys if planned.get(key, _ABSENT) != stored.get(key, _ABSENT)]
    changed = [key for key in different if not key.startswith(stale)]
    return [f"{key} is {_shown(stored, key)}, not {_shown(planned, key)}" for key in changed]


def _is_free(key: str, planned: Mapping[str, Any], stored: Mapping[str, Any], derived: Derived) -> bool:
    """Whether the value of a key may differ in outputs of other tools."""
    if key in _ABOUT_THE_WRITER:
        return True
    if key in ("dtype", "torch_dtype"):  # the same key in two versions of transformers
        names = ("dtype", "torch_dtype")
        values = {value for config in (planned, stored) for name in names if (value := config.get(name))}
        return len(values) <= 1
    if derived.plan.recipe.quantize is None or not key.startswith(f"{BLOCK}."):
        return False
    return key not in planned or key not in stored or key.startswith((f"{BLOCK}.producer", f"{BLOCK}.version"))


_ABOUT_THE_WRITER = frozenset(("transformers_version", "_name_or_path", "text_config.transformers_version"))
_ABSENT = object()


def _shown(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def flat_config(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested keys into dotted ones."""
    flat: dict[str, Any] = {}
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            flat |= flat_config(cast("dict[str, Any]", entry), f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = entry
    return flat
