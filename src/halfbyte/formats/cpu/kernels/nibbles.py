"""Operations on sixteen nibbles at a time: counting in a machine word, and table lookup with one byte shuffle.

numba does not expose these instructions, so three small intrinsics emit them: an unaligned load, a population count,
and a byte shuffle if the processor has one (x86 since 2006, every 64-bit ARM). Otherwise the shuffle is a loop.
"""

import os
import platform

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from halfbyte.formats.cpu.kernels.jit import kernel

U = np.uint64
_LOW_BITS = U(0x1111111111111111)
_SIGNS = U(0x8888888888888888)
_I8, _I64 = ir.IntType(8), ir.IntType(64)
_V8, _V16 = ir.VectorType(_I8, 8), ir.VectorType(_I8, 16)
_WORD, _PAIR = 8, 16  # bytes


def _shuffle_instruction():
    """Return LLVM's name for this processor's byte shuffle, or None."""
    if os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES"):
        return None  # compiled for some other processor
    if platform.machine() in ("aarch64", "arm64"):
        return "llvm.aarch64.neon.tbl1.v16i8"
    return "llvm.x86.ssse3.pshuf.b.128" if llvm.get_host_cpu_features().get("ssse3") else None


SHUFFLE = _shuffle_instruction()


def _address(context, builder, kind, array, offset):
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, _I8.as_pointer()), [offset])


def _load(builder, address, kind):
    value = builder.load(builder.bitcast(address, kind.as_pointer()))
    value.align = 1
    return value


@intrinsic
def word_at(typing, source, offset):
    """Load eight bytes of a byte array at an offset as one word."""

    def generate(context, builder, signature, args):
        return _load(builder, _address(context, builder, signature.args[0], *args), _I64)

    return types.uint64(source, types.intp), generate


@intrinsic
def ones(typing, word):
    """Return the number of set bits of a word."""

    def generate(_context, builder, _signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


def _through_table(builder, shuffle, table, source):
    """Map both nibbles of sixteen bytes with the table."""
    four, low = (ir.Constant(_V16, [value] * 16) for value in (4, 15))
    low_codes = builder.call(shuffle, [table, builder.and_(source, low)])
    high_codes = builder.call(shuffle, [table, builder.lshr(source, four)])
    return builder.or_(low_codes, builder.shl(high_codes, four))


@intrinsic(prefer_literal=True)
def _shuffle_block(typing, source, target, offset, nbytes, tables, table_at):
    """Map 8 or 16 bytes with the sixteen-byte table at an offset of `tables`."""
    width = nbytes.literal_value
    vector = _V16 if width == _PAIR else _V8

    def generate(context, builder, signature, args):
        shuffle = builder.module.declare_intrinsic(SHUFFLE, fnty=ir.FunctionType(_V16, [_V16, _V16]))
        table = _load(builder, _address(context, builder, signature.args[4], args[4], args[5]), _V16)
        block = _load(builder, _address(context, builder, signature.args[0], args[0], args[2]), vector)
        undefined = ir.Constant(vector, ir.Undefined)
        wider = ir.Constant(ir.VectorType(ir.IntType(32), 16), [i % width for i in range(16)])
        result = _through_table(builder, shuffle, table, builder.shuffle_vector(block, undefined, wider))
        first = ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(width)))
        stored = builder.shuffle_vector(result, ir.Constant(_V16, ir.Undefined), first)
        where = _address(context, builder, signature.args[1], args[1], args[2])
        builder.store(stored, builder.bitcast(where, vector.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.none(source, target, types.intp, nbytes, tables, types.intp), generate


@kernel
def look_up_by_shuffle(source, slot, tables, target):
    """Map each block of a row with its table; blocks have 16 or 32 nibbles."""
    flat = tables.reshape(-1)
    if source.size // slot.size == _WORD:
        for b in range(slot.size):
            _shuffle_block(source, target, 8 * b, 8, flat, 16 * np.intp(slot[b]))
    else:
        for b in range(slot.size):
            _shuffle_block(source, target, 16 * b, 16, flat, 16 * np.intp(slot[b]))


@kernel
def look_up_by_loop(source, slot, tables, target):
    """Do the same one byte at a time."""
    half = source.size // slot.size
    for b in range(slot.size):
        table = tables[slot[b]]
        for i in range(b * half, (b + 1) * half):
            target[i] = table[source[i] & 15] | np.uint8(table[source[i] >> 4] << np.uint8(4))


look_up = look_up_by_shuffle if SHUFFLE else look_up_by_loop


@kernel
def _word_counts(word):
    """Counts of |q| = 1..8 among sixteen nibbles q + 8, in eight 8-bit fields."""
    two = word ^ _SIGNS  # now in two's complement
    b0, b1, b2, b3 = two & _LOW_BITS, (two >> U(1)) & _LOW_BITS, (two >> U(2)) & _LOW_BITS, (two >> U(3)) & _LOW_BITS
    m1 = b1 ^ (b3 & b0)  # the magnitude's bits: a negative one is inverted above its lowest set bit
    m2 = b2 ^ (b3 & (b0 | b1))
    small, large = ~m2, m2
    counts = ones(b0 & ~m1 & small) | ones(m1 & ~b0 & small) << U(8) | ones(b0 & m1 & small) << U(16)
    counts |= ones(large & ~b0 & ~m1) << U(24) | ones(large & b0 & ~m1) << U(32)
    counts |= ones(large & m1 & ~b0) << U(40) | ones(large & m1 & b0) << U(48)
    return counts | ones(b3 & ~(b0 | b1 | b2)) << U(56)


@kernel
def count_magnitudes(source, counts):
    """Counts of |q| = 1..8 of each block of a row, packed in one word; blocks of 16, 32, 64 or 128 nibbles."""
    half = source.size // counts.size
    if half == _WORD:
        for b in range(counts.size):
            counts[b] = _word_counts(word_at(source, 8 * b))
    elif half == _PAIR:
        for b in range(counts.size):
            counts[b] = _word_counts(word_at(source, 16 * b)) + _word_counts(word_at(source, 16 * b + 8))
    else:
        for b in range(counts.size):
            counts[b] = U(0)
            for i in range(b * half, (b + 1) * half, _WORD):
                counts[b] += _word_counts(word_at(source, i))
