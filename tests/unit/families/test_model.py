"""Checkpoints as models: formats from tensors alone, and a separate error for each inconsistency."""

import json
from dataclasses import replace

import pytest
from pico import KINDS, MLP

from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.errors import CheckpointError
from halfbyte.families.examples import example
from halfbyte.families.linears import identify
from halfbyte.families.model import describe

HEAD = "language_model.lm_head"
EXPERT = "language_model.model.layers.1.mlp.experts.2"


@pytest.fixture
def k26(pico) -> Checkpoint:
    return open_checkpoint(pico("int4-k2.6"))


def without(checkpoint: Checkpoint, *names: str) -> Checkpoint:
    assert set(names) <= checkpoint.tensors.keys()
    return replace(checkpoint, tensors={n: t for n, t in checkpoint.tensors.items() if n not in names})


def with_config(checkpoint: Checkpoint, **keys: object) -> Checkpoint:
    text = {**checkpoint.config["text_config"], **keys}
    return replace(checkpoint, config={**checkpoint.config, "text_config": text})


def with_tensor(checkpoint: Checkpoint, name: str, dtype: str, shape: tuple[int, ...]) -> Checkpoint:
    tensor = TensorInfo(name, dtype, shape, "model-00001-of-000006.safetensors", 0, 0)
    return replace(checkpoint, tensors={**checkpoint.tensors, name: tensor})


def refused(checkpoint: Checkpoint) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        describe(checkpoint)
    assert caught.value.where
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_described_from_its_headers(pico, kind):
    checkpoint = open_checkpoint(pico(kind))
    model = describe(checkpoint)
    row = KINDS[kind]
    formats = {linear.role: set() for linear in model.linears.values()}
    for linear in model.linears.values():
        formats[linear.role].add(linear.format)
        assert linear.nbytes == sum(checkpoint.tensors[t.name].nbytes for t in linear.parts.values())
    assert formats == {role: {row.format if role in row.quantized else "bf16"} for role in formats}
    every = [t.name for linear in model.linears.values() for t in linear.parts.values()] + list(model.plain)
    assert sorted(every) == sorted(checkpoint.tensors)
    assert sorted(tensor.name for _, tensor in model.tensors()) == sorted(checkpoint.tensors)
    dense = 0 if kind == "qwen3-moe" else 1
    assert (model.layers, model.moe_layers, model.experts) == (3, tuple(range(dense, 3)), 4)
    assert (model.active_experts, model.shared_experts) == (2, dense)


def test_a_linear_knows_its_shape_group_and_seat(pico):
    gate = describe(open_checkpoint(pico("int4-k2.6"))).linears[f"{EXPERT}.gate_proj"]
    assert (gate.role, gate.layer, gate.expert) == ("routed_experts", 1, 2)
    assert (gate.format, gate.shape, gate.group, gate.weights) == ("int4", (32, 64), 32, 2048)
    assert set(gate.parts) == {"weight_packed", "weight_scale", "weight_shape"}
    wide = describe(open_checkpoint(pico("int4-g64"))).linears["model.layers.1.mlp.experts.2.gate_proj"]
    assert (wide.format, wide.shape, wide.group) == ("int4", (64, 64), 64)


def test_companions_belong_to_their_linear(pico):
    model = describe(open_checkpoint(pico("nvfp4")))
    assert {s for m in model.linears.values() if m.role in MLP for s in m.parts} == {
        "weight", "weight_scale", "weight_scale_2", "input_scale",
    }  # fmt: skip
    assert sum(place.role == "other_buffers" for place, _ in model.plain.values()) == 2 * 3


def test_the_published_model():
    model = describe(example("kimi-k2.6"))
    assert (model.layers, len(model.moe_layers), model.experts) == (61, 60, 384)
    assert len(model.linears) == 69120 + 60 * 3 + 3 + 61 * 5 + 1
    assert {linear.format for linear in model.linears.values()} == {"int4", "bf16"}


PACKED = ("weight_packed", "I32", (32, 8))
SCALE = ("weight_scale", "BF16", (32, 2))
COUNTS = ("weight_shape", "I32", (2,))
CODES = ("weight", "U8", (4, 16))
CODES_CT = ("weight_packed", "U8", (4, 16))
E4M3 = ("weight_scale", "F8_E4M3", (4, 2))
F32_SCALE = ("weight_scale", "F32", (4, 1))


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([PACKED, SCALE, COUNTS], ("int4", (32, 64), 32)),
        ([PACKED, SCALE, ("weight_shape", "I64", (2,))], ("int4", (32, 64), 32)),
        ([PACKED, ("weight_scale", "BF16", (32, 1)), COUNTS], ("int4", (32, 64), 64)),
        ([("weight_packed", "I32", (8, 16)), ("weight_scale", "BF16", (8, 1)), COUNTS], ("int4", (8, 128), 128)),
        ([("weight", "F8_E4M3", (576, 200)), ("weight_scale_inv", "F32", (5, 2))], ("fp8_block", (576, 200), 128)),
        ([("weight", "F8_E4M3", (5, 7)), ("weight_scale", "BF16", (5, 1))], ("fp8_channel", (5, 7), 0)),
        ([("weight", "F8_E4M3", (5, 7)), ("weight_scale", "F32", (5, 1))], ("fp8_channel", (5, 7), 0)),
        ([CODES, E4M3, ("weight_scale_2", "F32", ())], ("nvfp4", (4, 32), 16)),
        ([CODES, E4M3, ("weight_scale_2", "F32", (1,))], ("nvfp4", (4, 32), 16)),
        ([CODES_CT, E4M3, ("weight_global_scale", "F32", (1,))], ("nvfp4_ct", (4, 32), 16)),
        ([CODES, ("weight_scale", "U8", (4, 1))], ("mxfp4", (4, 32), 32)),
        ([CODES_CT, ("weight_scale", "U8", (4, 1))], ("mxfp4_ct", (4, 32), 32)),
        ([("weight", "BF16", (4, 3)), ("bias", "BF16", (4,))], ("bf16", (4, 3), 1)),
        ([("weight", "F16", (4, 3))], ("f16", (4, 3), 1)),
        ([("weight", "F32", (4, 3))], ("f32", (4, 3), 1)),
    ],
)  # fmt: skip
def test_formats_follow_from_suffixes_dtypes_and_shapes(tensors, expected):
    stored = identify(tuple(sorted(tensors)), "m")
    assert (stored.format, stored.shape, stored.group) == expected


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ([PACKED, COUNTS], "weight_scale is missing: found weight_packed I32 and weight_shape I32, as in int4"),
        ([SCALE, COUNTS], "weight_packed is missing: found weight_scale BF16 and weight_shape I32, as in int4"),
        ([PACKED, SCALE], "weight_shape is missing: found weight_packed I32 and weight_scale BF16, as in int4"),
        ([("weight", "U8", (4, 16))], "weight_scale is missing: found weight U8, as in nvfp4 or mxfp4"),
        (
            [("weight", "U8", (4, 16)), ("weight_scale", "F8_E4M3", (4, 2))],
            "weight_scale_2 is missing: found weight U8 and weight_scale F8_E4M3, as in nvfp4",
        ),
        (
            [("weight", "F8_E4M3", (4, 16))],
            "weight_scale or weight_scale_inv is missing: found weight F8_E4M3, as in fp8_block or fp8_channel",
        ),
        ([("bias", "BF16", (4,))], "the weight is missing"),
        ([("weight", "I8", (4, 16)), F32_SCALE], "no format has the tensors weight I8, weight_scale F32"),
        ([("weight", "BF16", (4, 16)), F32_SCALE], "no format has the tensors weight BF16, weight_scale F32"),
        ([("weight", "BF16", (4,))], "weight has shape [4], which is not a matrix"),
        (
            [PACKED, ("weight_scale", "BF16", (32, 3)), COUNTS],
            "weight_scale has shape [32, 3], which matches no group size (32, 64 or 128) for [32, 64]",
        ),
        ([PACKED, SCALE, ("weight_shape", "I32", (3,))], "weight_shape has shape [3], but its linear needs [2]"),
        (
            [("weight", "F8_E4M3", (576, 200)), ("weight_scale_inv", "F32", (4, 2))],
            "weight_scale_inv has shape [4, 2], but its linear needs [5, 2]",
        ),
        (
            [("weight", "U8", (4, 12)), ("weight_scale", "U8", (4, 1))],
            "mxfp4 has 24 columns, not a multiple of 32",
        ),
        ([("weight", "BF16", (4, 3)), ("bias", "BF16", (3,))], "bias has shape [3], but its linear needs [4]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_a_sentence(tensors, sentence):
    with pytest.raises(CheckpointError) as caught:
        identify(tuple(sorted(tensors)), "some.module")
    assert caught.value.what == sentence
    assert caught.value.where == "some.module"
    assert caught.value.fix


def test_a_missing_scale_names_its_linear(k26):
    error = refused(without(k26, f"{EXPERT}.up_proj.weight_scale"))
    assert error.what.startswith("weight_scale is missing")
    assert error.where == f"{EXPERT}.up_proj"


def test_an_expert_missing_in_one_layer(k26):
    gone = [name for name in k26.tensors if name.startswith(f"{EXPERT}.")]
    assert refused(without(k26, *gone)).what == "expert 2 is missing in layer 1"


def test_half_an_expert(k26):
    gone = [name for name in k26.tensors if name.startswith(f"{EXPERT}.up_proj.")]
    assert refused(without(k26, *gone)).what == "expert 2 of layer 1 has no up_proj"


def test_a_layer_without_its_experts(k26):
    gone = [name for name in k26.tensors if ".layers.2.mlp.experts." in name]
    assert refused(without(k26, *gone)).what == "layer 2 has neither experts nor a dense MLP"


def test_a_layer_missing_in_the_middle_and_at_the_end(k26):
    middle = [name for name in k26.tensors if ".layers.1." in name]
    assert refused(without(k26, *middle)).what == "layer 1 has no tensors"
    end = [name for name in k26.tensors if ".layers.2." in name]
    expected = "config.json says num_hidden_layers = 3, but the tensors have 2 layers"
    assert refused(without(k26, *end)).what == expected


def test_a_tensor_missing_in_one_layer(k26):
    name = "language_model.model.layers.2.self_attn.q_a_layernorm.weight"
    expected = "layer 2 has no 'self_attn.q_a_layernorm.weight', but layer 1 has"
    assert refused(without(k26, name)).what == expected


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"n_routed_experts": 8}, "config.json says n_routed_experts = 8, but each MoE layer has 4 experts"),
        ({"n_routed_experts": 0}, "config.json says n_routed_experts = 0, but each MoE layer has 4 experts"),
        ({"num_hidden_layers": 4}, "config.json says num_hidden_layers = 4, but the tensors have 3 layers"),
        ({"first_k_dense_replace": 2}, "config.json says first_k_dense_replace = 2, but layer 1 has experts"),
        ({"first_k_dense_replace": 0}, "config.json says first_k_dense_replace = 0, but layer 0 has no experts"),
        ({"n_routed_experts": None}, "config.json has no n_routed_experts"),
        ({"n_routed_experts": "4"}, "n_routed_experts is '4', not a number"),
        ({"num_hidden_layers": None}, "config.json has no num_hidden_layers"),
        ({"vocab_size": 64}, f"config.json says vocab_size = 64, but the head has 128 rows ({HEAD})"),
        ({"hidden_size": 32}, f"config.json says hidden_size = 32, but the head has 64 columns ({HEAD})"),
        (
            {"moe_intermediate_size": 16},
            "config.json says moe_intermediate_size = 16, but 'language_model.model.layers.1.mlp.experts.0.down_proj' "
            "has the shape [64, 32]",
        ),
    ],
)  # fmt: skip
def test_a_config_that_contradicts_the_tensors(k26, keys, sentence):
    assert refused(with_config(k26, **keys)).what == sentence


def test_an_expert_too_many_in_one_layer(k26):
    more = {
        name.replace(".experts.3.", ".experts.4."): tensor
        for name, tensor in k26.tensors.items()
        if ".layers.1.mlp.experts.3." in name
    }
    error = refused(replace(k26, tensors={**k26.tensors, **more}))
    assert error.what == "config.json says n_routed_experts = 4, but layer 1 has an expert 4"


def test_a_router_with_another_number_of_rows(k26):
    name = "language_model.model.layers.1.mlp.gate.weight"
    error = refused(with_tensor(k26, name, "BF16", (2, 64)))
    assert error.what == "the router has 2 rows for 4 experts"
    assert error.where == name


def test_a_tensor_without_a_role(k26):
    name = "language_model.model.layers.1.mlp.experts.2.up_proj.weight_zero_point"
    assert f"unknown tensor '{name}' in the " in refused(with_tensor(k26, name, "I32", (8, 2))).what


def test_a_config_without_its_text_part(k26):
    config = {key: value for key, value in k26.config.items() if key != "text_config"}
    assert refused(replace(k26, config=config)).what == "config.json has no text_config"


def test_layers_for_multi_token_prediction_may_be_there_or_not(pico):
    folder = pico("bf16")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    assert describe(open_checkpoint(folder)).layers == 3
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1, "num_hidden_layers": 2}))
    assert describe(open_checkpoint(folder)).layers == 3
