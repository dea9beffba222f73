"""Kernels equal the reference on many matrices; the sweep equals exact integers; bad input is rejected."""

import numpy as np
import pytest
from encode_arguments import encode_arguments

from halfbyte.formats.codec import amax, decode, encode
from halfbyte.formats.cpu import fp4
from halfbyte.formats.cpu import rows as chunks
from halfbyte.formats.cpu.kernels.sweep import exact_below
from halfbyte.formats.encoded import Encoded, Quality
from halfbyte.formats.format import E2M1
from halfbyte.formats.reference import (
    floats,
    fp8,
    gptq,
    int4,
    mxfp4,
    nvfp4,
    sweep,
)
from halfbyte.formats.registry import FORMATS

RNG = np.random.default_rng(20260801)


def bf16(values):
    return floats.f32_to_bf16(np.asarray(values, np.float32))


def hostile(shape=(16, 128)):
    """Zero blocks, -0.0, subnormals, a huge outlier, powers of two and ordinary weights together."""
    w = bf16(RNG.standard_normal(shape) * 0.02)
    w[0, :32] = 0
    w[1, :64] = 0x8000
    w[2, :48] = RNG.integers(1, 128, 48)
    w[3, 5] = bf16([3e4])[0]
    w[4] = bf16(2.0 ** RNG.integers(-20, 4, shape[1]))
    w[5, ::2] = 0
    w[6] = bf16(RNG.standard_normal(shape[1]) * 10.0 ** RNG.integers(-12, 3, shape[1]))
    return w


MATRICES = {
    "hostile": hostile(),
    "one_block": bf16(RNG.standard_normal((1, 32))),
    "tall": bf16(RNG.standard_normal((700, 32)) * 1e-3),
    "int4_grid": int4.decode(*int4.encode_kimi(bf16(RNG.standard_normal((24, 256)) * 0.03))),
    "powers": bf16(2.0 ** RNG.integers(-4, 3, (16, 64)).astype(np.float32)),
}


def reference(w, format, method):
    top = np.abs(floats.bf16_to_f32(w)).max()
    if format == "int4":
        make = int4.encode_kimi if method == "kimi" else int4.encode_compressed_tensors
        return make(w)
    if format == "fp8_channel":
        return fp8.encode_channel(w)
    if format.startswith("mxfp4"):
        return mxfp4.encode(w, keep_negative_zero=format == "mxfp4_ct")
    if method == "compressed-tensors":
        return nvfp4.encode_compressed_tensors(w, nvfp4.global_scale(top))
    if method == "gptq":
        factors = encode_arguments(method, w.shape[1])["factors"]
        return gptq.compensate(floats.bf16_to_f32(w).astype(float), factors, gptq.tensor_scale(top))
    scale_2 = nvfp4.tensor_scale(top)
    if method == "max":
        return nvfp4.encode_max(w, scale_2)
    scale = sweep.block_scale_mse(w, top)
    return nvfp4.codes(w, scale, scale_2), scale


def reference_decode(encoded):
    first, second, *rest = encoded.tensors.values()
    match encoded.format:
        case "int4":
            return int4.decode(first, second)
        case "fp8_channel":
            return fp8.decode_channel(first, second)
        case "nvfp4":
            return nvfp4.decode(first, second, np.float32(rest[0]))
        case "nvfp4_ct":
            return nvfp4.decode_compressed_tensors(first, second, rest[0][0])
        case _:
            return mxfp4.decode(first, second)


METHODS = [(name, method) for name, row in FORMATS.items() for method in row.encodes]


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize(("format", "method"), METHODS)
def test_kernel_equals_reference(format, method, matrix):
    w = MATRICES[matrix]
    made = encode(w, format, **encode_arguments(method, w.shape[1]))
    first, second, *_ = made.tensors.values()
    codes, scale = reference(w, format, method)
    np.testing.assert_array_equal(second, scale)
    np.testing.assert_array_equal(first, codes)
    np.testing.assert_array_equal(decode(made), reference_decode(made))
    for part in FORMATS[format].tensors:
        assert made.tensors[part.suffix].shape == part.shape(*w.shape)


@pytest.mark.parametrize(("format", "method"), METHODS)
def test_quality_is_what_the_reference_decode_shows(format, method):
    w = MATRICES["hostile"]
    made = encode(w, format, **encode_arguments(method, w.shape[1]))
    if format in ("int4", "fp8_channel"):
        decoded = floats.bf16_to_f32(reference_decode(made))
    else:  # block formats are measured before the last rounding to BF16, as the engines multiply them
        decoded = unrounded(made, method)
    exact = floats.bf16_to_f32(w)
    error = np.abs(exact - decoded)  # FP32, as in the kernels; only the order of the sums differs
    assert error.dtype == np.float32
    assert made.quality.weights == w.size
    np.testing.assert_allclose(made.quality.signal, (exact.astype(np.float64) ** 2).sum(), rtol=1e-12)
    np.testing.assert_allclose(made.quality.error, (error.astype(np.float64) ** 2).sum(), rtol=1e-12)
    assert made.quality.max_error == error.max()


def unrounded(made, method):
    """The FP32 values that the encoder measured its errors with."""
    first, second, *rest = made.tensors.values()
    block = FORMATS[made.format].block
    factor = floats.e8m0_decode(second) if block == 32 else floats.E4M3_VALUES[second]
    if method == "compressed-tensors":
        factor = factor / rest[0][0]
    elif method == "gptq":
        factor = factor * rest[0]
    elif block == 16:  # ModelOpt's arithmetic, in whichever spelling the tensor scale is stored
        factor = factor * nvfp4.tensor_scale(np.float32(amax(MATRICES["hostile"])))
    return floats.e2m1_decode(floats.unpack_nibbles(first)) * np.repeat(factor, block, axis=1)


@pytest.mark.parametrize("method", ["max", "mse"])
@pytest.mark.parametrize("pattern", [1, 2, 5, 9])
def test_zeros_stay_zeros_where_a_factor_underflows(method, pattern):
    """Block scale times tensor scale is 0 there, and 0 / 0 has no code."""
    w = np.array([[0] * 16 + [pattern] * 3 + [0] * 13], np.uint16)
    made = encode(w, "nvfp4", method=method)
    codes, scale = reference(w, "nvfp4", method)
    np.testing.assert_array_equal(made.tensors["weight_scale"], scale)
    np.testing.assert_array_equal(made.tensors["weight"], codes)
    assert not made.tensors["weight"][0, :8].any()


def test_saturation_is_counted():
    w = bf16([[1.9] * 16 + [0.5] * 16])  # 1.9 is 7.6 quarter steps: the even scale is 0.5, where 3.8 is not 6
    assert encode(w, "mxfp4").quality.saturated == 0
    w = bf16([[1.7] * 3 + [0.1] * 29])  # mantissa 1.7 stays below 1.75: 6.8 quarter steps, clipped to 6
    assert encode(w, "mxfp4").quality.saturated == 3
    source = encode(bf16([[1.7] * 3 + [0.1] * 29]), "int4")
    assert encode(source, "mxfp4").quality.saturated == 3


@pytest.mark.parametrize(("format", "method"), [m for m in METHODS if FORMATS[m[0]].element is E2M1])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_fused_from_int4_equals_through_bf16(format, method, group):
    stored = encode(bf16(RNG.standard_normal((40, 512)) * 0.02), "int4", group=group)
    fused, plain = (encode(w, format, **encode_arguments(method, 512)) for w in (stored, decode(stored)))
    for suffix in plain.tensors:
        np.testing.assert_array_equal(fused.tensors[suffix], plain.tensors[suffix])
    for field in ("signal", "error"):  # the same terms in another order
        np.testing.assert_allclose(getattr(fused.quality, field), getattr(plain.quality, field), rtol=1e-12)
    assert fused.quality.max_error == plain.quality.max_error
    assert fused.quality.saturated == plain.quality.saturated


def test_fused_from_int4_with_negative_zero_and_subnormal_scales():
    q = np.resize(np.arange(-8, 8), (6, 64)).astype(np.int8)
    scale = np.repeat(np.uint16([0x0000, 0x0001, 0x007F, 0x0080, 0xBC00, 0x3C00])[:, None], 2, axis=1)
    stored = Encoded(
        "int4", q.shape, {"weight_packed": int4.pack(q), "weight_scale": scale, "weight_shape": np.int32(q.shape)}
    )
    for format, method in METHODS:
        if FORMATS[format].element is E2M1:
            fused, plain = (encode(w, format, **encode_arguments(method, 64)) for w in (stored, decode(stored)))
            for suffix in plain.tensors:
                np.testing.assert_array_equal(
                    fused.tensors[suffix], plain.tensors[suffix], err_msg=f"{format} {method}"
                )


def sweep_matrices():
    yield "int4", int4.decode(*int4.encode_kimi(bf16(RNG.standard_normal((6, 128)) * 0.02)))
    yield "powers of two: many true ties", bf16(2.0 ** RNG.integers(-6, 3, (8, 64)))
    yield "thirds", bf16(RNG.integers(-3, 4, (8, 64)) * 0.375)
    yield "40 binades", bf16(RNG.standard_normal((8, 64)) * 2.0 ** RNG.integers(-60, 3, (8, 64)))
    yield "subnormals", RNG.integers(0, 300, (4, 64)).astype(np.uint16)
    yield "constant", np.full((2, 64), bf16([0.3])[0], np.uint16)


@pytest.mark.parametrize(("name", "w"), list(sweep_matrices()))
def test_sweep_equals_exact_integers(name, w):
    made = encode(w, "nvfp4", method="mse").tensors["weight_scale"]
    np.testing.assert_array_equal(made, sweep.block_scale_mse(w, np.float32(amax(w))), err_msg=name)


def test_blocks_that_fp64_cannot_decide_are_decided_exactly(monkeypatch):
    """Weights 60 binades apart exceed any FP64 sum, so integers decide ties."""
    asked = []

    def counting(block, largest):
        asked.append(block)
        return sweep.best_scale(block, largest)

    monkeypatch.setattr(fp4, "best_scale", counting)
    w = bf16(RNG.standard_normal((8, 64)) * 2.0 ** RNG.integers(-60, 3, (8, 64)))
    made = encode(w, "nvfp4", method="mse").tensors["weight_scale"]
    np.testing.assert_array_equal(made, sweep.block_scale_mse(w, np.float32(amax(w))))
    assert asked


def test_the_bound_below_which_fp64_sums_are_exact():
    """At and above the bound a sum of squares can lose its last bit; below it, it cannot."""
    one = np.uint16(0x3F80)
    for smallest, first in ((one, 56), (np.uint16(0x3B80), 40), (np.uint16(0x0001), 1)):
        bound = exact_below(smallest, one, first)
        units_of_weight = int(max(smallest >> 7, 1)) - 134 + 7
        units_of_grid = -1 + max(first >> 3, 1) - 10 + 127 - 134
        unit = 2.0 ** (2 * min(units_of_weight, units_of_grid))
        assert bound / 2 + unit != bound / 2
        assert bound == 2.0**53 * unit


@pytest.mark.parametrize("group_amax", [1.0, 1.5, 37.0])
def test_sweep_under_a_shared_amax(group_amax):
    stored = encode(bf16(RNG.standard_normal((4, 64)) * 0.02), "int4")
    expected = sweep.block_scale_mse(decode(stored), np.float32(group_amax))
    for source in (stored, decode(stored)):
        made = encode(source, "nvfp4", method="mse", amax=group_amax)
        np.testing.assert_array_equal(made.tensors["weight_scale"], expected)


def test_threads_change_neither_bytes_nor_sums(monkeypatch):
    monkeypatch.setattr(chunks, "_WEIGHTS", 1 << 12)
    w = bf16(RNG.standard_normal((1000, 64)) * 0.02)
    assert len(chunks.row_chunks(w.shape)) > 3
    stored = encode(w, "int4", threads=1)
    for format, method in METHODS:
        for source in (w, stored):
            one, four = (encode(source, format, **encode_arguments(method, 64), threads=t) for t in (1, 4))
            assert one.quality == four.quality
            for suffix in one.tensors:
                np.testing.assert_array_equal(one.tensors[suffix], four.tensors[suffix])
    np.testing.assert_array_equal(decode(stored, threads=1), decode(stored, threads=4))


def test_reciprocal_division_moves_the_tensor_scale_by_an_ulp_for_28_mantissas():
    values = floats.bf16_to_f32(np.arange(0x3F80, 0x4000, dtype=np.uint16))
    ieee = np.array([nvfp4.tensor_scale(v) for v in values]).view(np.int32)
    cuda = np.array([nvfp4.tensor_scale(v, division="reciprocal") for v in values]).view(np.int32)
    assert np.abs(ieee - cuda).max() == 1
    assert (ieee != cuda).sum() == 28
    differs = int(np.flatnonzero(ieee != cuda)[0])
    weights = np.full((1, 16), 0x3F80 + differs, np.uint16)
    for division, expected in (("ieee", ieee), ("reciprocal", cuda)):
        made = encode(weights, "nvfp4", division=division).tensors["weight_scale_2"]
        assert made.view(np.int32) == expected[differs]


def test_quality_adds_up():
    both = Quality(2, 4.0, 1.0, 0.5, 1).merge(Quality(3, 6.0, 0.0, 0.1, 2))
    assert both == Quality(5, 10.0, 1.0, 0.5, 3)
    assert both.sqnr_db == pytest.approx(10.0)
    assert Quality(1, 1.0, 0.0, 0.0, 0).sqnr_db == float("inf")


def test_fp8_channel_takes_any_k():
    w = bf16(RNG.standard_normal((5, 37)))
    codes, scale = fp8.encode_channel(w)
    made = encode(w, "fp8_channel")
    np.testing.assert_array_equal(made.tensors["weight"], codes)
    np.testing.assert_array_equal(made.tensors["weight_scale"], scale)
    decoded = floats.bf16_to_f32(decode(made)).astype(np.float64)
    np.testing.assert_allclose(made.quality.error, ((floats.bf16_to_f32(w) - decoded) ** 2).sum(), rtol=1e-6)
