"""Kernels equal the reference on all sorts of matrices; the sweep equals exact integers; bad input is refused."""

import dataclasses

import numpy as np
import pytest

from halfbyte.errors import TensorError, UsageError
from halfbyte.numerics import chunks
from halfbyte.numerics.codec import amax, decode, encode
from halfbyte.numerics.encoded import Encoded, Quality
from halfbyte.numerics.formats import FORMATS
from halfbyte.numerics.reference import floats, fp8, int4, mxfp4, nvfp4, sweep

RNG = np.random.default_rng(20260801)


def bf16(values):
    return floats.f32_to_bf16(np.asarray(values, np.float32))


def hostile(shape=(16, 128)):
    """Zero blocks, -0.0, subnormals, a huge outlier, powers of two and ordinary weights side by side."""
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
    made = encode(w, format, method=method)
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
    made = encode(w, format, method=method)
    exact = floats.bf16_to_f32(w).astype(np.float64)
    if format in ("int4", "fp8_channel"):
        decoded = floats.bf16_to_f32(reference_decode(made)).astype(np.float64)
    else:  # block formats are measured before the last rounding to BF16, as the engines multiply them
        decoded = unrounded(made)
    error = np.abs(exact - decoded)
    assert made.quality.weights == w.size
    np.testing.assert_allclose(made.quality.signal, (exact**2).sum(), rtol=1e-12)
    np.testing.assert_allclose(made.quality.error, (error**2).sum(), rtol=2e-4)  # FP32 products
    np.testing.assert_allclose(made.quality.max_error, error.max(), rtol=2e-4)
    assert made.quality.saturated <= w.size


def unrounded(made):
    first, second, *rest = made.tensors.values()
    block = FORMATS[made.format].block
    factor = floats.e8m0_decode(second) if block == 32 else floats.E4M3_VALUES[second]
    factor = factor.astype(np.float64)
    if made.format == "nvfp4":
        factor = factor * float(rest[0])
    if made.format == "nvfp4_ct":
        factor = factor / float(rest[0][0])
    return floats.e2m1_decode(floats.unpack_nibbles(first)).astype(np.float64) * np.repeat(factor, block, axis=1)


def test_saturation_is_counted():
    w = bf16([[1.9] * 16 + [0.5] * 16])  # 1.9 is 7.6 quarter steps: the even scale is 0.5, where 3.8 is no 6
    assert encode(w, "mxfp4").quality.saturated == 0
    w = bf16([[1.7] * 3 + [0.1] * 29])  # mantissa 1.7 stays below 1.75: 6.8 quarter steps, clipped to 6
    assert encode(w, "mxfp4").quality.saturated == 3
    given = encode(bf16([[1.7] * 3 + [0.1] * 29]), "int4")
    assert encode(given, "mxfp4").quality.saturated == 3


@pytest.mark.parametrize(("format", "method"), [m for m in METHODS if FORMATS[m[0]].element == "e2m1"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_fused_from_int4_equals_through_bf16(format, method, group):
    stored = encode(bf16(RNG.standard_normal((40, 512)) * 0.02), "int4", group=group)
    fused, plain = encode(stored, format, method=method), encode(decode(stored), format, method=method)
    for suffix in plain.tensors:
        np.testing.assert_array_equal(fused.tensors[suffix], plain.tensors[suffix])
    for field in ("signal", "error", "max_error"):
        np.testing.assert_allclose(getattr(fused.quality, field), getattr(plain.quality, field), rtol=1e-6)
    assert fused.quality.saturated == plain.quality.saturated


def test_fused_from_int4_with_negative_zero_and_subnormal_scales():
    q = np.resize(np.arange(-8, 8), (6, 64)).astype(np.int8)
    scale = np.repeat(np.uint16([0x0000, 0x0001, 0x007F, 0x0080, 0xBC00, 0x3C00])[:, None], 2, axis=1)
    stored = Encoded(
        "int4", q.shape, {"weight_packed": int4.pack(q), "weight_scale": scale, "weight_shape": np.int32(q.shape)}
    )
    for format, method in METHODS:
        if FORMATS[format].element == "e2m1":
            fused, plain = encode(stored, format, method=method), encode(decode(stored), format, method=method)
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


def test_blocks_that_fp64_cannot_decide_are_decided_exactly():
    """Two candidates tie but for a weight 2^-60 smaller, which no FP64 sum can hold beside the others."""
    w = bf16([[4.0, 4.0, 2.0, 2.0] + [2.0**-60] * 12 + [6.0] * 16])
    made = encode(w, "nvfp4", method="mse").tensors["weight_scale"]
    np.testing.assert_array_equal(made, sweep.block_scale_mse(w, np.float32(6)))


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
            one, four = (encode(source, format, method=method, threads=t) for t in (1, 4))
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
    assert encode(bf16([[1.171875] * 16]), "nvfp4", division="reciprocal").tensors["weight_scale_2"] in cuda.view(
        np.float32
    )


# Bad input: one sentence each, with the tensor's name.


@pytest.mark.parametrize("bad", [0x7F80, 0xFF80, 0x7FC0])
@pytest.mark.parametrize("format", [name for name, row in FORMATS.items() if row.encodes])
def test_infinities_and_nan_are_refused_by_name(format, bad):
    w = MATRICES["hostile"].copy()
    w[7, 3] = bad
    kind = "NaN" if bad == 0x7FC0 else "an infinity"
    with pytest.raises(TensorError, match=f"the weights hold {kind}.*experts.7.up_proj"):
        encode(w, format, name="experts.7.up_proj")


def test_int4_scales_that_are_not_finite_are_refused():
    stored = encode(MATRICES["powers"], "int4")
    for bad, what in ((0x7F80, "scales hold an infinity"), (0x7F7F, "weights hold an infinity")):
        scale = stored.tensors["weight_scale"].copy()
        scale[3, 1] = bad
        broken = dataclasses.replace(stored, tensors={**stored.tensors, "weight_scale": scale})
        with pytest.raises(TensorError, match=what):
            encode(broken, "mxfp4", name="experts.0.down_proj")


@pytest.mark.parametrize(
    ("format", "k"), [("nvfp4", 24), ("nvfp4_ct", 8), ("mxfp4", 48), ("mxfp4_ct", 16), ("int4", 40)]
)
def test_partial_blocks_are_refused(format, k):
    with pytest.raises(TensorError, match=f"K = {k} is not a multiple.*gate_proj.*keep this tensor in BF16"):
        encode(bf16(np.ones((4, k))), format, name="gate_proj")


def test_fp8_channel_takes_any_k():
    w = bf16(RNG.standard_normal((5, 37)))
    codes, scale = fp8.encode_channel(w)
    made = encode(w, "fp8_channel")
    np.testing.assert_array_equal(made.tensors["weight"], codes)
    np.testing.assert_array_equal(made.tensors["weight_scale"], scale)
    decoded = floats.bf16_to_f32(decode(made)).astype(np.float64)
    np.testing.assert_allclose(made.quality.error, ((floats.bf16_to_f32(w) - decoded) ** 2).sum(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 32), (4, 0), (32,), (2, 2, 32)])
def test_what_is_not_a_matrix_is_refused(shape):
    with pytest.raises(TensorError, match="is not a matrix"):
        encode(np.zeros(shape, np.uint16), "nvfp4")


def test_wrong_words_get_the_right_one():
    w = MATRICES["powers"]
    with pytest.raises(UsageError, match=r"unknown format 'nvpf4'; fix: did you mean 'nvfp4'\?"):
        encode(w, "nvpf4")
    with pytest.raises(UsageError, match=r"unknown method 'msee' for nvfp4; fix: did you mean 'mse'\?"):
        encode(w, "nvfp4", method="msee")
    with pytest.raises(UsageError, match="reads fp8_block but does not write it"):
        encode(w, "fp8_block")
    with pytest.raises(UsageError, match="no INT4 group of 16"):
        encode(w, "int4", group=16)
    with pytest.raises(UsageError, match="unknown division 'cuda'"):
        encode(w, "nvfp4", division="cuda")
    with pytest.raises(TensorError, match="float64 weights are not encoded"):
        encode(np.zeros((2, 32)), "nvfp4")


@pytest.mark.parametrize("wrong", [0.001, float("nan"), float("inf"), 4.0001])
def test_a_shared_amax_below_the_tensors_own_is_refused(wrong):
    with pytest.raises(TensorError, match="is not a BF16 magnitude at or above"):
        encode(MATRICES["powers"], "nvfp4", amax=wrong)


def test_stored_tensors_that_do_not_fit_are_refused():
    w = MATRICES["powers"]
    for format in ("int4", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct", "fp8_channel"):
        made = encode(w, format)
        for suffix, tensor in made.tensors.items():
            without = {key: value for key, value in made.tensors.items() if key != suffix}
            with pytest.raises(TensorError, match=f"{format} needs {suffix}"):
                decode(dataclasses.replace(made, tensors=without))
            if tensor.ndim == 2:
                short = {**made.tensors, suffix: tensor[:-1]}
                with pytest.raises(TensorError, match=f"{suffix}"):
                    decode(dataclasses.replace(made, tensors=short))


@pytest.mark.parametrize(("format", "nan"), [("nvfp4", 0x7F), ("nvfp4", 0xFF), ("mxfp4", 0xFF)])
def test_nan_block_scales_are_refused(format, nan):
    made = encode(MATRICES["powers"], format)
    scale = made.tensors["weight_scale"].copy()
    scale[2, 1] = nan
    with pytest.raises(TensorError, match=r"weight_scale is NaN at \(2, 1\)"):
        decode(dataclasses.replace(made, tensors={**made.tensors, "weight_scale": scale}))


def test_quality_adds_up():
    both = Quality(2, 4.0, 1.0, 0.5, 1).merge(Quality(3, 6.0, 0.0, 0.1, 2))
    assert both == Quality(5, 10.0, 1.0, 0.5, 3)
    assert both.sqnr_db == pytest.approx(10.0)
    assert Quality(1, 1.0, 0.0, 0.0, 0).sqnr_db == float("inf")
