"""Checkpoints that vLLM would load wrongly or silently: each must be found."""

import copy

from checkpoints import fp8_block, planned, recipe_of, relative

MOE = "language_model.model.layers.1.mlp.experts"


def _with_list(case, change):
    """Change the list of unquantized modules in every place."""
    case = copy.deepcopy(case)
    block = case["config"]["quantization_config"]
    for where, key in ((block, "ignore"), (block, "exclude"), (case["modelopt_file"], "quantization")):
        if where is None or key not in where:
            continue
        if key == "quantization":
            where[key]["exclude_modules"] = change(where[key]["exclude_modules"])
        else:
            where[key] = change(where[key])
    return case


def _with_tensors(case, change):
    return {**case, "tensors": list(change(case["tensors"]))}


def _without(case, part):
    return _with_tensors(case, lambda tensors: (row for row in tensors if part not in row[0]))


def damaged(source):
    """Return every damage by name, applied to the planned output of a checkpoint."""
    wafer = planned(source, recipe_of("nvfp4 modelopt, wafer's scope"))
    globs = planned(source, recipe_of("nvfp4 compressed-tensors, weights only"))
    quark = planned(source, recipe_of("mxfp4 quark"))
    one_more = [
        (name.replace(".experts.0.", ".experts.32."), dtype, shape)
        for name, dtype, shape in wafer["tensors"]
        if f"{MOE}.0." in name
    ]
    scales = [
        (f"{MOE.replace('.experts', '.shared_experts')}.down_proj.weight_scale", "F8_E4M3", (256, 6)),
    ]
    layers = {layer: tuple(range(32 - 4 * (layer % 2))) for layer in range(1, 6)}
    return {
        "no mm_projector in ModelOpt's list": _with_list(wafer, lambda old: [p for p in old if "projector" not in p]),
        "a glob for compressed-tensors": _with_list(
            globs, lambda old: ["*self_attn*" if "self_attn" in p else p for p in old]
        ),
        "q_a_proj ignored, its fused twin not": _with_list(
            globs, lambda old: ["re:.*q_a_proj.*", *(p for p in old if "self_attn" not in p)]
        ),
        "no shared experts in Quark's list": _with_list(quark, lambda old: [p for p in old if "shared" not in p]),
        "no input_scale for one expert": _without(wafer, f"{MOE}.7.up_proj.input_scale"),
        "an absent expert": _without(wafer, f"{MOE}.7."),
        "an absent expert in Quark's spelling": _without(quark, f"{MOE}.7."),
        "an expert too many": _with_tensors(wafer, lambda tensors: [*tensors, *one_more]),
        "scales for an ignored module": _with_tensors(quark, lambda tensors: [*tensors, *scales]),
        "layers of different numbers of experts": planned(source, recipe_of("mxfp4 quark"), keep=layers),
    }


def twelve_layers():
    """Return a checkpoint whose layer 1 alone is unquantized, with a correct list and one with extra entries."""
    source = relative(layers=12, experts=4, active_experts=2, width=256, expert_width=64)
    quantized = planned(source, recipe_of("nvfp4 modelopt, nvidia's scope"))
    plain = planned(source, recipe_of("bf16"))
    layer = "language_model.model.layers.1."
    tensors = [row for row in quantized["tensors"] if not row[0].startswith(layer)]
    case = {**quantized, "tensors": [*tensors, *(row for row in plain["tensors"] if row[0].startswith(layer))]}
    return {
        "layer 1 alone": _with_list(case, lambda old: [*old, f"{layer}*"]),
        "layers.1* takes 10 and 11 too": _with_list(case, lambda old: [*old, layer.rstrip(".") + "*"]),
    }


def small_fp8():
    return fp8_block(layers=2, experts=4, active_experts=2, width=256, expert_width=128, dense_width=512)
