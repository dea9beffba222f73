"""Bytes equal to the peers', for every case in tests/golden. Exceptions are listed with their reason."""

import hashlib
import importlib.util
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from scale_ties import relative_gap

from halfbyte.formats.codec import amax, decode, encode
from halfbyte.formats.encoded import Encoded, bf16_bits
from halfbyte.formats.reference import nvfp4, sweep
from halfbyte.formats.reference.floats import bf16_to_f32

GOLDEN = Path(__file__).parents[2] / "golden"
PEERS = sorted(path.stem for path in GOLDEN.glob("*.safetensors"))

FP32_EDGE = ("denormals", "all_denormal", "huge")

# (peer, recipe, case) that we do not reproduce, and why. Each has a test of its own below.
DIFFERENT = {
    ("modelopt-0.41.0", "nvfp4_max", "outlier"): "block scales below 2^-9 become 0",
    ("modelopt-0.41.0", "nvfp4_max", "denormals"): "block scales below 2^-9 become 0",
    ("compressed-tensors", "mxfp4", "huge"): "blocks from 1.75 * 2^127 on are lost",
}


def load_inputs():
    spec = importlib.util.spec_from_file_location("golden_inputs", GOLDEN / "inputs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


inputs = load_inputs()


@cache
def case(name):
    for family in (inputs.bf16_cases, inputs.mse_cases, inputs.fused_cases, inputs.int4_cases, inputs.fp8_block_cases):
        if name in family():
            return family()[name]
    return inputs.large_cases()[name]()


@cache
def record(peer):
    return json.loads((GOLDEN / f"{peer}.json").read_text())


def stored(peer, key):
    with safe_open(GOLDEN / f"{peer}.safetensors", "pt") as file:
        tensor = file.get_tensor(key)
    return bf16_bits(tensor) if "bfloat16" in str(tensor.dtype) else tensor.numpy()


def int4(packed, scale):
    shape = (packed.shape[0], packed.shape[1] * 8)
    return Encoded("int4", shape, {"weight_packed": packed, "weight_scale": scale, "weight_shape": np.int32(shape)})


def tensors(encoded, decoded=None):
    return {**encoded.tensors, **({decoded: decode(encoded)} if decoded else {})}


def fused(pair, format, method, decoded):
    shared = max(amax(weights) for weights in pair)
    both = {}
    for name, weights in zip(("gate", "up"), pair, strict=True):
        made = tensors(encode(weights, format, method=method, amax=shared), decoded)
        both.update({f"{name}.{suffix}": tensor for suffix, tensor in made.items()})
    return both


def fp8_block(codes, scale_inv):
    encoded = Encoded("fp8_block", codes.shape, {"weight": codes, "weight_scale_inv": scale_inv})
    return {"decoded": decode(encoded)}


OURS = {
    "nvfp4_max": lambda w: tensors(encode(w, "nvfp4", method="max"), "dequantized"),
    "nvfp4_max_fused": lambda pair: fused(pair, "nvfp4", "max", "dequantized"),
    "int4_pack": lambda w: tensors(encode(w, "int4", method="compressed-tensors")),
    "int4_pack_g64": lambda w: tensors(encode(w, "int4", method="compressed-tensors", group=64)),
    "int4_pack_g128": lambda w: tensors(encode(w, "int4", method="compressed-tensors", group=128)),
    "int4_decode": lambda stored: {"decoded": decode(int4(*stored))},
    "nvfp4": lambda w: tensors(encode(w, "nvfp4_ct", method="compressed-tensors"), "decoded"),
    "nvfp4_fused": lambda pair: fused(pair, "nvfp4_ct", "compressed-tensors", "decoded"),
    "mxfp4": lambda w: tensors(encode(w, "mxfp4_ct"), "decoded"),
    "fp8_channel": lambda w: tensors(encode(w, "fp8_channel"), "decoded"),
    "fp8_block": lambda stored: fp8_block(*stored),
    "quark/mxfp4": lambda w: tensors(encode(w, "mxfp4")),
    "quark/mxfp4_from_int4": lambda stored: tensors(encode(int4(*stored), "mxfp4")),
}


def goldens():
    """(peer, recipe, case) of everything that is reproduced byte for byte."""
    for peer in PEERS:
        names = {tuple(key.split("/")[:2]) for key in record(peer)["outputs_sha256"] if key.count("/") == 2}
        for recipe, name in sorted(names):
            different = any(peer.startswith(p) and recipe == r and name == c for p, r, c in DIFFERENT)
            if not different and not recipe.startswith("nvfp4_mse"):
                yield peer, recipe, name


def ours(peer, recipe, name):
    make = OURS.get(f"{peer.split('-')[0]}/{recipe}") or OURS[recipe]
    return make(case(name))


def test_every_peer_is_here():
    assert {peer.rpartition("-")[0] for peer in PEERS} == {"modelopt", "compressed-tensors", "quark"}
    assert len(list(goldens())) > 150


def test_inputs_are_those_the_peers_saw():
    for peer in PEERS:
        for name, digest in record(peer)["inputs_sha256"].items():
            value = case(name)
            assert inputs.sha256(*(value if isinstance(value, tuple) else (value,))) == digest, (peer, name)


@pytest.mark.parametrize(("peer", "recipe", "name"), list(goldens()))
def test_bytes_equal_the_peers(peer, recipe, name):
    digests = record(peer)["outputs_sha256"]
    made = ours(peer, recipe, name)
    expected = {key.split("/")[2]: digest for key, digest in digests.items() if key.startswith(f"{recipe}/{name}/")}
    assert expected
    for suffix, digest in expected.items():
        tensor = made[suffix]
        if suffix == "weight_shape":
            tensor = tensor.astype(np.int64)  # compressed-tensors writes I64, Kimi's files have I32
        assert hashlib.sha256(np.ascontiguousarray(tensor).tobytes()).hexdigest() == digest, suffix


def test_tensor_scales_for_every_mantissa():
    patterns = np.arange(0x3F80, 0x4000, dtype=np.uint16)
    values = bf16_to_f32(patterns)
    mine = np.array([nvfp4.tensor_scale(value) for value in values])
    theirs = np.array([nvfp4.global_scale(value) for value in values])
    for peer in PEERS:
        if peer.startswith("modelopt"):
            np.testing.assert_array_equal(mine, stored(peer, "scalar/weight_scale_2"))
        if peer.startswith("compressed-tensors"):
            np.testing.assert_array_equal(theirs, stored(peer, "scalar/weight_global_scale"))


@pytest.mark.parametrize("name", ["outlier", "denormals"])
def test_modelopt_041_loses_blocks_far_below_the_largest(name):
    """0.41 lets a block scale round to 0, which decodes the block to 0; 0.47 clamps it at 2^-9, and so do we."""
    peer = "modelopt-0.41.0"
    made = encode(case(name), "nvfp4")
    theirs = stored(peer, f"nvfp4_max/{name}/weight_scale")
    lost = theirs == 0
    assert lost.any()
    assert (made.tensors["weight_scale"][lost] == 1).all()
    np.testing.assert_array_equal(made.tensors["weight_scale"][~lost], theirs[~lost])
    mine = made.tensors["weight"].reshape(*lost.shape, 8)
    np.testing.assert_array_equal(mine[~lost], stored(peer, f"nvfp4_max/{name}/weight").reshape(mine.shape)[~lost])


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer.startswith("compressed-tensors")])
def test_compressed_tensors_loses_the_largest_mxfp4_blocks(peer):
    """From 1.75 * 2^127 on its exponent overflows and the block decodes to 0; we write Quark's byte 254."""
    made = encode(case("huge"), "mxfp4_ct")
    theirs = stored(peer, "mxfp4/huge/weight_scale")
    lost = made.tensors["weight_scale"] == 254
    assert (theirs[lost] == 127).all()
    np.testing.assert_array_equal(made.tensors["weight_scale"][~lost], theirs[~lost])


def sweep_cases():
    names = {key.split("/")[1] for key in record("modelopt-0.47.0")["outputs_sha256"] if key.startswith("nvfp4_mse/")}
    return sorted(names - {"all_zero"})


def ties(weights, chosen, theirs, largest):
    """Blocks that differ, with the exact relative gap of the two losses."""
    for r, b in np.argwhere(chosen != theirs):
        block = bf16_to_f32(weights[r, 16 * b : 16 * b + 16])
        yield (int(r), int(b)), relative_gap(block, largest, int(chosen[r, b]), int(theirs[r, b]))


@pytest.mark.parametrize("name", [name for name in sweep_cases() if name not in FP32_EDGE])
def test_sweep_differs_from_modelopt_only_in_exact_ties(name):
    weights = case(name)
    made = encode(weights, "nvfp4", method="mse")
    theirs = stored("modelopt-0.47.0", f"nvfp4_mse/{name}/weight_scale")
    different = dict(ties(weights, made.tensors["weight_scale"], theirs, amax(weights)))
    assert all(gap == 0 for gap in different.values()), different
    assert len(different) <= {"mse_int4_grid": 13, "sweep_stress": 3}.get(name, 0)
    equal = made.tensors["weight_scale"] == theirs
    codes = made.tensors["weight"].reshape(*equal.shape, 8)
    expected = stored("modelopt-0.47.0", f"nvfp4_mse/{name}/weight").reshape(codes.shape)
    np.testing.assert_array_equal(codes[equal], expected[equal])
    assert made.tensors["weight_scale_2"] == stored("modelopt-0.47.0", f"nvfp4_mse/{name}/weight_scale_2")


@pytest.mark.parametrize("name", ["fused_gaussian", "fused_int4_grid"])
def test_sweep_of_a_fused_pair_shares_the_tensor_scale(name):
    pair = case(name)
    shared = max(amax(weights) for weights in pair)
    for part, weights in zip(("gate", "up"), pair, strict=True):
        made = encode(weights, "nvfp4", method="mse", amax=shared)
        theirs = stored("modelopt-0.47.0", f"nvfp4_mse_fused/{name}/{part}.weight_scale")
        assert all(gap == 0 for _, gap in ties(weights, made.tensors["weight_scale"], theirs, shared))
        assert made.tensors["weight_scale_2"] == stored(
            "modelopt-0.47.0", f"nvfp4_mse_fused/{name}/{part}.weight_scale_2"
        )


@pytest.mark.parametrize("name", FP32_EDGE)
def test_sweep_is_right_where_modelopts_fp32_losses_are_not_numbers_any_more(name):
    """There every block that differs has byte 0x01 in ModelOpt: all its losses were 0, or all infinite."""
    weights = case(name)
    made = encode(weights, "nvfp4", method="mse").tensors["weight_scale"]
    theirs = stored("modelopt-0.47.0", f"nvfp4_mse/{name}/weight_scale")
    assert (theirs[made != theirs] == 1).all()
    np.testing.assert_array_equal(made, sweep.block_scale_mse(weights, np.float32(amax(weights))))


def test_a_zero_tensor_is_finite_where_modelopt_divides_by_zero():
    assert "nvfp4_max/all_zero" in record("modelopt-0.47.0")["refused"]
    for method, byte in (("max", 0x38), ("mse", 0x01)):
        made = encode(case("all_zero"), "nvfp4", method=method)
        assert (made.tensors["weight_scale"] == byte).all()
        assert not made.tensors["weight"].any()
        assert not decode(made).any()
        assert np.isfinite(made.tensors["weight_scale_2"])
        assert made.tensors["weight_scale_2"] > 0
