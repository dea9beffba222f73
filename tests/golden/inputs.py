"""The inputs of the golden vectors: the same bits on every machine.

Every random number is an integer from splitmix64 on a counter. Floating point enters only as single
IEEE operations on float64 (one product, one quotient), which round alike everywhere, and BF16 is
reached by integer arithmetic. Only numpy is needed, so each peer's environment can import this file.

Shapes: N output rows, K input columns, K a multiple of 32.
"""

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

BF16 = np.ndarray  # uint16 bit patterns
LARGE_SHAPE = (2048, 7168)  # one expert matrix of a trillion-parameter model
LARGE_ROWS_AT_ONCE = 128  # keeps the float64 intermediates under 100 MB
E2M1_THRESHOLDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


# Integers


def splitmix64(seed: int, start: int, count: int) -> np.ndarray:
    """Outputs start .. start+count-1 of the splitmix64 stream that `seed` names."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64) * golden
    z += np.uint64((seed * 0xD1342543DE82EF95) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def integers(seed: int, shape: tuple[int, ...], below: int) -> np.ndarray:
    """int64 values in [0, below); the modulo bias does not matter here."""
    words = splitmix64(seed, 0, int(np.prod(shape)))
    return (words % np.uint64(below)).astype(np.int64).reshape(shape)


def normal_integers(seed: int, start: int, count: int) -> np.ndarray:
    """Nearly Gaussian int64 values of mean 0 and standard deviation 2**17."""
    words = splitmix64(seed, 3 * start, 3 * count)
    total = sum((words >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4))
    return 2 * total.astype(np.int64).reshape(count, 3).sum(axis=1) - 12 * 0xFFFF


# BF16


def to_bf16(values: np.ndarray) -> BF16:
    """Round finite float64 values to BF16, nearest, ties to even, denormals kept."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    exponent = ((bits >> 52) & 0x7FF) - 1023
    significand = np.where(exponent == -1023, 0, (bits & (2**52 - 1)) | 2**52)
    kept_exponent = np.maximum(exponent, -126)
    drop = np.minimum(45 + kept_exponent - exponent, 62)
    lowest_kept = (significand >> drop) & 1
    rounded = (significand + (np.int64(1) << (drop - 1)) - 1 + lowest_kept) >> drop
    magnitude = ((kept_exponent + 126) << 7) + rounded  # a carry runs into the exponent, as it should
    if (magnitude >= 0x7F80).any():
        raise ValueError("a value does not fit in BF16")
    return (magnitude | np.where(bits < 0, 0x8000, 0)).astype(np.uint16)


def from_bf16(patterns: BF16) -> np.ndarray:
    """The exact float64 values of finite BF16 patterns."""
    return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def sha256(*arrays: np.ndarray) -> str:
    """SHA-256 of the arrays' raw little-endian bytes, concatenated."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


# Families of weights


def gaussian(seed: int, shape: tuple[int, int], *, sigma: float = 0.02, first_row: int = 0) -> BF16:
    """Gaussian weights; each row has its own scale, between a half and three halves."""
    rows, columns = shape
    z = normal_integers(seed, first_row * columns, rows * columns).reshape(shape)
    row_scale = 64 + (splitmix64(seed + 1000, first_row, rows) % np.uint64(129)).astype(np.int64)
    return to_bf16((z * row_scale[:, None]) * (sigma * 2.0**-24))


def heavy_tails(seed: int, shape: tuple[int, int]) -> BF16:
    """Gaussian weights, one in 32 of them multiplied by up to 2**10."""
    chosen = integers(seed + 1, shape, 32) == 0
    power = np.where(chosen, integers(seed + 2, shape, 11), 0)
    return to_bf16(np.ldexp(from_bf16(gaussian(seed, shape)), power))


def kimi_grid(weights: BF16) -> tuple[np.ndarray, BF16]:
    """Codes in [-7, 7] and BF16 scales of the symmetric INT4 grid with scale amax / 7, groups of 32."""
    groups = from_bf16(weights).reshape(weights.shape[0], -1, 32)
    scale = to_bf16(np.abs(groups).max(axis=2) / 7.0)
    codes = np.clip(np.rint(groups / from_bf16(scale)[..., None]), -7, 7)
    return codes.astype(np.int64).reshape(weights.shape), scale


def decode_int4(codes: np.ndarray, scale: BF16) -> BF16:
    """bf16(q * scale), the value of an INT4 weight."""
    return to_bf16(codes * np.repeat(from_bf16(scale), 32, axis=1))


def int4_grid(weights: BF16) -> BF16:
    """The weights as decoded from an INT4 checkpoint."""
    return decode_int4(*kimi_grid(weights))


def pack_int4(codes: np.ndarray) -> np.ndarray:
    """compressed-tensors layout: element j of a row is bits 4(j%8).. of word j//8, as q + 8."""
    nibbles = (codes + 8).astype(np.uint32).reshape(codes.shape[0], -1, 8)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(nibbles << shifts, axis=2).view(np.int32)


# Corner cases


def zeros_in_blocks() -> BF16:
    """Zero blocks of 16, 32 and whole rows, with -0.0 inside, and blocks of one nonzero element."""
    w = gaussian(31, (16, 128))
    w[0:2, 0:16] = 0
    w[2:4, 32:64] = 0
    w[4, :] = 0
    w[5, :] = 0x8000
    w[6, 0:32] = np.where(integers(32, (32,), 2) == 0, 0x0000, 0x8000)
    w[7:11, 64:96] = 0
    w[7:11, [64, 71, 79, 95]] = np.diag(w[7:11, 0])
    w[11:13, 0:128:3] = 0x8000
    w[13:15, 1:128:2] = 0
    return w


def nvfp4_tie_row(block_scales: list[float]) -> np.ndarray:
    """Blocks of 16 whose quotients are the E2M1 thresholds, when the tensor scale is 2**-12."""
    signed = [sign * t for t in E2M1_THRESHOLDS for sign in (1, -1)]
    block = np.array([6.0, *signed, -6.0])
    return np.concatenate([block * scale for scale in block_scales]) * 2.0**-12


def ties() -> BF16:
    """Quotients exactly on, one BF16 ulp above and one below every rounding threshold.

    The tensor's amax is 2688 * 2**-12, so that NVFP4's tensor scale is a power of two.
    """
    powers = [2.0**k for k in (-3, -3, 0, 0, 2, 2, 5, 5)]  # pairs: also ties of MXFP4's blocks of 32
    mixed = [1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875, 13.0]
    small = [0.0078125, 0.01171875, 0.015625, 0.021484375, 26.0, 60.0, 104.0, 288.0]
    rows = [nvfp4_tie_row(powers + mixed), nvfp4_tie_row(mixed + small), nvfp4_tie_row(small + powers)]
    signed = np.array([sign * t for t in E2M1_THRESHOLDS for sign in (1, -1)])
    # amax of mantissa 1.75, where MXFP4's exponent steps up; ties of both neighbouring scales follow
    step = np.concatenate([[7.0, -7.0], signed, signed[:7] * 2, [-7.0], signed[:8] / 2]) * 2.0**-6
    rows.append(np.tile(step, 8))
    # amax 7.5 steps, where compressed-tensors' INT4 scale is a power of two; halves are its ties
    halves = np.concatenate([np.arange(-7.5, 8.0), np.arange(-7.5, 8.0)]) * 2.0**-5
    rows.append(np.tile(halves, 8))
    exact = to_bf16(np.stack(rows))
    up, down = exact + np.uint16(1), exact - np.uint16(1)
    w = np.concatenate([exact, up, down, gaussian(41, (1, 256))])
    w[-1, 0] = to_bf16(np.array([2688 * 2.0**-12]))[0]
    return w


def denormals() -> BF16:
    """BF16 denormals beside tiny normal numbers, both signs."""
    shape = (16, 128)
    pattern = integers(51, shape, 128)
    exponent = np.where(integers(52, shape, 2) == 0, 0, integers(53, shape, 20))
    exponent[0:4] = 0
    return (pattern | (exponent << 7) | (integers(54, shape, 2) << 15)).astype(np.uint16)


def huge() -> BF16:
    """Values of BF16's three largest binades, both signs.

    The first row stays below 1.75 * 2**127, where MXFP4's exponent would overflow; the second reaches it.
    """
    shape = (4, 64)
    pattern = 0x7E00 + integers(55, shape, 0x180)
    pattern[0] = np.minimum(pattern[0], 0x7F5F)
    pattern[1] = np.minimum(pattern[1], 0x7F60)
    pattern[1, ::32] = 0x7F60
    return (pattern | (integers(56, shape, 2) << 15)).astype(np.uint16)


def outlier() -> BF16:
    """One value of about 3e4 among noise of 1e-3."""
    w = gaussian(61, (8, 128), sigma=0.001)
    w[3, 37] = to_bf16(np.array([30000.0]))[0]
    return w


def tiny_negative() -> BF16:
    """Blocks of one large value and many that round to zero, negative ones included."""
    shape = (16, 128)
    small = np.ldexp(1.0 + integers(71, shape, 128) / 128.0, -5 - integers(72, shape, 30))
    small[:, ::16] = np.ldexp(1.0, integers(73, (16, 8), 5))
    return to_bf16(np.where(integers(74, shape, 3) == 0, small, -small))


def sweep_stress() -> BF16:
    """Blocks for which several block scales have exactly the same squared error."""
    shape = (64, 256)
    power = np.repeat(np.ldexp(1.0, integers(81, (64, 16), 8) - 12), 16, axis=1)
    codes = integers(82, shape, 15) - 7
    few = integers(83, shape, 4) * np.where(integers(84, shape, 2) == 0, 1, -1)
    constant = np.where(integers(85, shape, 2) == 0, 3, -3)
    sparse = np.where(integers(86, shape, 11) == 0, codes, 0)
    rows = np.arange(64)[:, None] // 16
    return to_bf16(np.choose(rows, [codes, few, constant, sparse]) * power)


def bf16_cases() -> dict[str, BF16]:
    """Weights [N, K] as BF16 bit patterns."""
    shape = (64, 256)
    return {
        "gaussian": gaussian(11, shape),
        "uniform": to_bf16((integers(12, shape, 2**16 + 1) - 2**15) * 2.0**-20),
        "heavy_tails": heavy_tails(13, shape),
        "int4_grid": int4_grid(gaussian(14, shape)),
        "zeros_in_blocks": zeros_in_blocks(),
        "ties": ties(),
        "denormals": denormals(),
        "outlier": outlier(),
        "tiny_negative": tiny_negative(),
        "wide": gaussian(15, (8, 1536)),
        "one_row": gaussian(16, (1, 64)),
        "tall": gaussian(17, (257, 32)),
        "sweep_stress": sweep_stress(),
        "all_zero": np.zeros((2, 32), np.uint16),
        "all_denormal": denormals()[0:4, 0:64].copy(),
        "huge": huge(),
    }


def fused_cases() -> dict[str, tuple[BF16, BF16]]:
    """Gate and up projections of one expert, whose amax differ."""
    gate, up = gaussian(91, (32, 128), sigma=0.02), gaussian(92, (32, 128), sigma=0.035)
    return {"fused_gaussian": (gate, up), "fused_int4_grid": (int4_grid(gate), int4_grid(up))}


def mse_cases() -> dict[str, BF16]:
    """Two larger matrices for the scale search."""
    shape = (256, 1024)
    return {"mse_gaussian": gaussian(101, shape), "mse_int4_grid": int4_grid(gaussian(102, shape))}


# INT4 and FP8 sources


def extreme_scales() -> tuple[np.ndarray, BF16]:
    """Scales among the denormals and next to BF16's largest number; every product is finite."""
    tiny, near_max = integers(112, (16, 4), 512), 0x7B80 + integers(113, (16, 4), 0x400)
    scale = np.where(integers(111, (16, 4), 2) == 0, tiny, near_max)
    codes = integers(114, (16, 128), 16) - 8
    exponent = np.repeat(scale >> 7, 32, axis=1)
    limit = np.choose(np.clip(exponent - 251, 0, 3), [8, 3, 1, 1])
    return np.clip(codes, -limit, limit), scale.astype(np.uint16)


def zero_groups() -> tuple[np.ndarray, BF16]:
    """Groups whose codes are all zero, and groups whose scale is zero."""
    codes, scale = kimi_grid(gaussian(121, (16, 128)))
    codes[0:4, 0:32] = 0
    codes[4, :] = 0
    scale[8:12, 1] = 0
    codes[10, 32:64] = 0
    return codes, scale


def int4_cases() -> dict[str, tuple[np.ndarray, BF16]]:
    """INT4 weights as (packed int32 [N, K/8], BF16 scales [N, K/32])."""
    wide_scales = ((100 + integers(131, (32, 8), 20)) << 7 | integers(132, (32, 8), 128)).astype(np.uint16)
    cases = {
        "kimi": kimi_grid(gaussian(141, (64, 512))),
        "all_codes": (integers(133, (32, 256), 16) - 8, wide_scales),
        "extreme_scales": extreme_scales(),
        "zero_groups": zero_groups(),
        "constant": (integers(134, (16, 128), 15) - 7, np.full((16, 4), 0x3B4D, np.uint16)),
    }
    return {name: (pack_int4(codes), scale) for name, (codes, scale) in cases.items()}


def fp8_block_cases() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """FP8 weights as (E4M3 codes uint8 [N, K], float32 scales of 128x128 blocks)."""
    cases = {}
    for seed, (name, n, k) in enumerate([("fp8_block_even", 128, 256), ("fp8_block_ragged", 200, 130)]):
        codes = integers(151 + seed, (n, k), 256)
        codes = np.where((codes & 0x7F) == 0x7F, codes - 1, codes)  # no NaN
        blocks = (-(-n // 128), -(-k // 128))
        scales = np.ldexp(2.0**23 + integers(161 + seed, blocks, 2**23), -36)  # 24 significant bits
        cases[name] = (codes.astype(np.uint8), scales.astype(np.float32))
    return cases


# Large matrices, in bands of rows


def bands() -> Iterator[tuple[int, tuple[int, int]]]:
    """First row and shape of each band of a large matrix."""
    rows, columns = LARGE_SHAPE
    for first in range(0, rows, LARGE_ROWS_AT_ONCE):
        yield first, (min(LARGE_ROWS_AT_ONCE, rows - first), columns)


def large_gaussian() -> BF16:
    """Gaussian weights of an expert's shape."""
    return np.concatenate([gaussian(171, shape, first_row=first) for first, shape in bands()])


def large_int4_grid() -> BF16:
    """The BF16 values of `large_int4`."""
    return np.concatenate([int4_grid(gaussian(172, shape, first_row=first)) for first, shape in bands()])


def large_int4() -> tuple[np.ndarray, BF16]:
    """Packed INT4 weights of an expert's shape, and their scales."""
    grids = [kimi_grid(gaussian(172, shape, first_row=first)) for first, shape in bands()]
    return np.concatenate([pack_int4(codes) for codes, _ in grids]), np.concatenate([scale for _, scale in grids])


def large_cases() -> dict[str, Callable[[], BF16 | tuple[np.ndarray, BF16]]]:
    """Functions for the large inputs, to be called one at a time."""
    return {"large_gaussian": large_gaussian, "large_int4_grid": large_int4_grid, "large_int4": large_int4}
