"""Quantization configs of the output: `quantization_config` in config.json, and ModelOpt's hf_quant_config.json."""

from __future__ import annotations

from typing import Any

from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.errors import CheckpointError, RecipeError
from halfbyte.families.completeness import PER_LAYER
from halfbyte.formats.format import BlockOptions
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.manifest import Plan
from halfbyte.plan.pruned import counts_by_layer, renumbered
from halfbyte.plan.rules import ENCODE
from halfbyte.plan.vllm_matching import disagreement, engine_modules, module_roles, read_block
from halfbyte.recipe.decisions import Quantize

_BLOCK = "quantization_config"
MODELOPT_FILE = "hf_quant_config.json"


def output_config(plan: Plan) -> dict[str, Any]:
    """Return the output's config.json; keys that do not change keep their order."""
    checkpoint, family = plan.checkpoint, plan.model.family
    quantize = plan.recipe.quantize
    if quantize is None and not plan.decodes:
        return _truncated(plan, _renumbered(plan, _pruned(plan, dict(checkpoint.config))))
    config = {key: value for key, value in checkpoint.config.items() if key != _BLOCK}
    text = family.text_config
    if text is not None and text in config:
        config[text] = {key: value for key, value in config[text].items() if key != _BLOCK}
    if quantize is not None:
        config[_BLOCK] = quantization_block(quantize, plan)
    return _truncated(plan, _pruned(plan, config))


def _pruned(plan: Plan, config: dict[str, Any]) -> dict[str, Any]:
    """Set the number of experts in a pruned checkpoint's config."""
    key = plan.model.family.keys["experts"]
    if plan.kept is None or key is None:
        return config
    config = _with_number(plan, config, key, plan.experts)
    counts = counts_by_layer(plan.kept, plan.layers or plan.model.layers)
    return config if counts is None else _with_number(plan, config, PER_LAYER, counts)


def _renumbered(plan: Plan, config: dict[str, Any]) -> dict[str, Any]:
    """Renumber the experts in a quantization block that is kept, at the top level or in the text config."""
    text, kept = plan.model.family.text_config, plan.kept
    if kept is None:
        return config
    if text is not None and _BLOCK in config[text]:
        config = {
            **config,
            text: {**config[text], _BLOCK: renumbered(config[text][_BLOCK], plan.model.family, kept)},
        }
    return {**config, _BLOCK: renumbered(config[_BLOCK], plan.model.family, kept)} if _BLOCK in config else config


def _with_number(plan: Plan, config: dict[str, Any], key: str, number: int | list[int]) -> dict[str, Any]:
    """Return a config with a number or list of numbers replaced in the text model's part."""
    text = plan.model.family.text_config
    return {**config, text: {**config[text], key: number}} if text else {**config, key: number}


def _truncated(plan: Plan, config: dict[str, Any]) -> dict[str, Any]:
    """Set the number of layers in a truncated checkpoint's config."""
    key = plan.model.family.keys["layers"]
    if plan.layers is None or key is None:
        return config
    return _with_number(plan, config, key, min(plan.layers, plan.model.family.text(config)[key]))


def quantization_block(quantize: Quantize, plan: Plan) -> dict[str, Any]:
    """Return the block for the recipe's format."""
    block = FORMATS[quantize.format].config_block
    assert block is not None  # the recipe schema accepts only formats that are written
    return block(_options(quantize, plan))


def _options(quantize: Quantize, plan: Plan) -> BlockOptions:
    calibrated = FORMATS[quantize.format].input_scale is not None
    return BlockOptions(
        ignore=ignored(quantize, plan),
        quantizes_inputs=quantize.stores_input_scales if calibrated else quantize.activations == "dynamic",
        kv_cache=quantize.kv_cache not in (None, "none"),
        producer_version=quantize.config.producer_version,
    )


def ignored(quantize: Quantize, plan: Plan) -> list[str]:
    """Return the ignore list: the recipe's patterns, or a list built from its roles as in ModelOpt.

    ModelOpt shortens each module to its shortest dotted prefix without quantized modules and appends a star. A module
    that cannot be shortened gets no star, such as `lm_head` in ModelOpt 0.41 and 0.47.
    """
    if quantize.config.ignore_patterns is not None:
        return list(quantize.config.ignore_patterns)
    linears = plan.model.linears.values()
    quantized_prefixes: set[str] = set()
    for prefix in (linear.module for job in plan.jobs if job.action == ENCODE for linear in job.linears):
        while prefix and prefix not in quantized_prefixes:
            quantized_prefixes.add(prefix)
            prefix = prefix.rpartition(".")[0]  # noqa: PLW2901 - stops at the first known prefix
    roles = quantize.config.ignore_roles or ()
    modules = [linear.module for linear in linears if linear.role in roles]
    modules += [name.rpartition(".")[0] for name, (place, _) in plan.model.plain.items() if place.role in roles]
    patterns: set[str] = set()
    for module in modules:
        prefix = next((module[:end] for end in _prefix_ends(module) if module[:end] not in quantized_prefixes), module)
        patterns.add(prefix if prefix == module else f"{prefix}*")
    return sorted(patterns)


def _prefix_ends(module: str) -> list[int]:
    """Return the end positions of a name's dotted prefixes, including the whole name."""
    return [at for at, letter in enumerate(module) if letter == "."] + [len(module)]


def modelopt_file(plan: Plan) -> dict[str, Any] | None:
    """Return hf_quant_config.json, which ModelOpt writes in addition to the block and older engines read."""
    quantize = plan.recipe.quantize
    if quantize is None and not plan.decodes:
        return _kept_modelopt_file(plan)
    content = FORMATS[quantize.format].hf_quant_config if quantize is not None else None
    return None if quantize is None or content is None else content(_options(quantize, plan))


def _kept_modelopt_file(plan: Plan) -> dict[str, Any] | None:
    """Return the source's hf_quant_config.json for outputs whose weight formats do not change."""
    path = plan.checkpoint.root / MODELOPT_FILE
    if not path.is_file():
        return None
    try:
        content: Any = read_json(path)
    except (OSError, ValueError):
        what, fix = f"cannot read {MODELOPT_FILE}", "download it again, or remove it: config.json has the same content"
        raise CheckpointError(what, where=str(path), fix=fix) from None
    return content if plan.kept is None else renumbered(content, plan.model.family, plan.kept)


def refuse_misread(plan: Plan) -> None:
    """Raise RecipeError if an engine would expect scales that the output lacks, or ignore scales that it has.

    A recipe contains roles and an ignore list, and `--set` may change only one of them. The audit would detect the
    mismatch hours later.
    """
    if plan.recipe.quantize is None:
        return
    block = read_block(quantization_block(plan.recipe.quantize, plan))
    written = {linear.module for job in plan.jobs for linear in job.linears}
    quantized = {linear.module for job in plan.jobs if job.action == ENCODE for linear in job.linears}
    linears = plan.model.linears
    roles = {name: role for name, role in module_roles(plan.model).items() if name in written or name not in linears}
    mismatches = [
        (module, reason)
        for module in engine_modules(plan.model.family, roles)
        if (reason := disagreement(module, block, quantized))
    ]
    if mismatches:
        module, reason = mismatches[0]
        more = f", and {len(mismatches) - 1} more" if len(mismatches) > 1 else ""
        what = f"the roles and the ignore list of recipe '{plan.recipe.name}' disagree: {reason}{more}"
        fix = f"change roles.{module.role} or the list in quantize.config so that they agree"
        raise RecipeError(what, where=module.name, fix=fix)
