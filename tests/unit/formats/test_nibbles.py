"""Counting and table lookup of sixteen nibbles at a time, for every byte at every position."""

import numpy as np
import pytest

from halfbyte.formats.cpu.kernels import nibbles

BYTES = np.arange(256, dtype=np.uint8)


def every_byte_everywhere(half):
    """Rows with each byte value at each position of a block."""
    return np.stack([np.roll(np.resize(BYTES, 256 * half // np.gcd(256, half)), place) for place in range(half)])


def magnitudes(block):
    """|q| of a block's nibbles, computed directly."""
    return [abs((byte >> shift & 15) - 8) for byte in map(int, block) for shift in (0, 4)]


@pytest.mark.parametrize("half", [8, 16, 32, 64])
def test_counts(half):
    for row in every_byte_everywhere(half)[:16]:
        counts = np.empty(row.size // half, np.uint64)
        nibbles.count_magnitudes(row, counts)
        for block, word in zip(row.reshape(-1, half), counts, strict=True):
            found = [int(word) >> 8 * m & 255 for m in range(8)]
            assert found == [magnitudes(block).count(m + 1) for m in range(8)]


@pytest.mark.parametrize("nibble", range(16))
def test_counts_of_a_block_of_one_nibble(nibble):
    counts = np.empty(1, np.uint64)
    nibbles.count_magnitudes(np.full(8, nibble * 17, np.uint8), counts)
    magnitude = abs(nibble - 8)
    assert int(counts[0]) == (16 << 8 * (magnitude - 1) if magnitude else 0)


@pytest.mark.parametrize("half", [8, 16])
def test_shuffle_equals_the_loop_and_the_table(half):
    rng = np.random.default_rng(half)
    tables = rng.integers(0, 16, (37, 16), np.uint8)
    for row in every_byte_everywhere(half):
        slot = rng.integers(0, len(tables), row.size // half).astype(np.int32)
        expected = np.empty_like(row)
        for b, s in enumerate(slot):
            block = row[b * half : (b + 1) * half]
            expected[b * half : (b + 1) * half] = tables[s][block & 15] | tables[s][block >> 4] << 4
        for look_up in {nibbles.look_up, nibbles.look_up_by_loop}:
            target = np.zeros_like(row)
            look_up(row, slot, tables, target)
            assert np.array_equal(target, expected)


def test_unaligned_rows():
    memory = np.resize(BYTES, 8 * 40 + 3)
    row = memory[3:]
    counts, aligned = np.empty(40, np.uint64), np.empty(40, np.uint64)
    nibbles.count_magnitudes(row, counts)
    nibbles.count_magnitudes(row.copy(), aligned)
    assert np.array_equal(counts, aligned)
