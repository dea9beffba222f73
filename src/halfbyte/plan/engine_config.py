"""Quantization configs of the output: `quantization_config` in config.json, and ModelOpt's hf_quant_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.errors import CheckpointError
from halfbyte.families.completeness import PER_LAYER
from halfbyte.plan.manifest import Plan
from halfbyte.plan.pruned import counts_by_layer, renumbered
from halfbyte.plan.rules import ENCODE
from halfbyte.recipe.decisions import Quantize

_BLOCK = "quantization_config"
MODELOPT_FILE = "hf_quant_config.json"
# `producer` must name ModelOpt: vLLM and TensorRT-LLM recognize hf_quant_config.json by it. The version is only in
# halfbyte/provenance.json, so that a new version does not change output bytes.
_WRITTEN_BY = {"name": "halfbyte"}


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
    return _BLOCKS[quantize.format](quantize, ignored(quantize, plan))


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
    if quantize is None or quantize.format != "nvfp4":
        return None
    return {
        "producer": {"name": "modelopt", "version": quantize.config.producer_version},
        "written_by": _WRITTEN_BY,
        "quantization": {
            "quant_algo": _modelopt_algorithm(quantize),
            "kv_cache_quant_algo": None if quantize.kv_cache == "none" else "FP8",
            "group_size": 16,
            "exclude_modules": ignored(quantize, plan),
        },
    }


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


def _quark(quantize: Quantize, exclude: list[str]) -> dict[str, Any]:
    """Return AMD Quark's block for vLLM, SGLang and ATOM; vLLM requires the empty keys and takes their length."""
    tensor = {
        "dtype": "fp4",
        "qscheme": "per_group",
        "ch_axis": -1,
        "group_size": 32,
        "symmetric": None,  # Quark's own QConfig.from_dict raises KeyError without it
        "scale_format": "e8m0",
        "scale_calculation_mode": "even",
        "observer_cls": "PerBlockMXObserver",
    }
    inputs = {**tensor, "is_dynamic": True} if quantize.activations == "dynamic" else None
    return {
        "quant_method": "quark",
        "version": quantize.config.producer_version,
        "written_by": _WRITTEN_BY,
        "global_quant_config": {
            "weight": {**tensor, "is_dynamic": False},
            "input_tensors": inputs,
            "output_tensors": None,
            "bias": None,
        },
        "exclude": exclude,
        "algo_config": None,
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "export": {"pack_method": "reorder", "weight_format": "real_quantized", "kv_cache_group": []},
    }


def _compressed_tensors(
    format: str, weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, ignore: list[str]
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": None,
    }


def _args(bits: int, kind: str, strategy: str, group: int | None, dynamic: bool | str) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "group_size": group,
        "symmetric": True,
        "dynamic": dynamic,
    }


def _mxfp4_ct(quantize: Quantize, ignore: list[str]) -> dict[str, Any]:
    dynamic = quantize.activations == "dynamic"
    inputs = _args(4, "float", "group", 32, True) if dynamic else None
    return _compressed_tensors("mxfp4-pack-quantized", _args(4, "float", "group", 32, False), inputs, ignore)


def _nvfp4_ct(quantize: Quantize, ignore: list[str]) -> dict[str, Any]:
    inputs = _args(4, "float", "tensor_group", 16, "local") if quantize.stores_input_scales else None
    return _compressed_tensors("nvfp4-pack-quantized", _args(4, "float", "tensor_group", 16, False), inputs, ignore)


def _fp8_channel(quantize: Quantize, ignore: list[str]) -> dict[str, Any]:
    inputs = _args(8, "float", "token", None, True) if quantize.activations == "dynamic" else None
    return _compressed_tensors("float-quantized", _args(8, "float", "channel", None, False), inputs, ignore)


def _int4(quantize: Quantize, ignore: list[str]) -> dict[str, Any]:
    return _compressed_tensors("pack-quantized", _args(4, "int", "group", 32, False), None, ignore)


def _modelopt_algorithm(quantize: Quantize) -> str:
    """Return ModelOpt's algorithm name, the only key of hf_quant_config.json that marks weight-only quantization."""
    return "NVFP4" if quantize.stores_input_scales else "W4A16_NVFP4"


def _modelopt(quantize: Quantize, ignore: list[str]) -> dict[str, Any]:
    """Return ModelOpt's block."""
    fp4 = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    inputs = fp4 if quantize.stores_input_scales else None
    block: dict[str, Any] = {
        "config_groups": {"group_0": {"input_activations": inputs, "weights": fp4, "targets": ["Linear"]}},
        "ignore": ignore,
        "quant_algo": _modelopt_algorithm(quantize),
    }
    if quantize.kv_cache != "none":
        block["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    return {
        **block,
        "producer": {"name": "modelopt", "version": quantize.config.producer_version},
        "written_by": _WRITTEN_BY,
        "quant_method": "modelopt",
    }


_BLOCKS = {
    "mxfp4": _quark,
    "mxfp4_ct": _mxfp4_ct,
    "nvfp4": _modelopt,
    "nvfp4_ct": _nvfp4_ct,
    "fp8_channel": _fp8_channel,
    "int4": _int4,
}
