"""Mutation tests: damage a kernel, and the comparison with the reference must fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[3] / "src" / "halfbyte"
PROBE = Path(__file__).with_name("mutation_probe.py")


class Mutation(NamedTuple):
    """A line of a kernel file, a plausible mistake in it, and the probe that must detect it."""

    file: str
    sound: str
    damaged: str
    encoder: str
    source: str


MUTATIONS = {
    "round at 2 with the step of 4": Mutation(
        "scalars.py",
        "if magnitude < F(2) else",
        "if magnitude <= F(2.6) else",
        "nvfp4",
        "bf16",
    ),
    "ties up instead of to even": Mutation(
        "scalars.py",
        "value = (magnitude + shift) - shift",
        "value = (magnitude * F(1.0000001) + shift) - shift",
        "mxfp4",
        "bf16",
    ),
    "no saturation at 6": Mutation(
        "scalars.py",
        "return F(6) if value > F(6) else value",
        "return value",
        "mse",
        "bf16",
    ),
    "block scale not clamped below": Mutation(
        "scalars.py",
        "min(max(scale, F(0.001953125)), F(448))",
        "min(scale, F(448))",
        "nvfp4",
        "bf16",
    ),
    "zero block gets no 1.0": Mutation(
        "scalars.py",
        "        scale = F(1)\n",
        "        scale = F(2)\n",
        "nvfp4",
        "bf16",
    ),
    "E4M3 ties up": Mutation(
        "scalars.py",
        "U(0x7FFFF) + ((bits >> U(20)) & U(1))",
        "U(0x80000)",
        "fp8_channel",
        "bf16",
    ),
    "E8M0 steps up at 1.5": Mutation(
        "scalars.py",
        "U(0x200000)",
        "U(0x400000)",
        "mxfp4",
        "bf16",
    ),
    "BF16 rounding truncates": Mutation(
        "scalars.py",
        "(bits + U(0x7FFF) + ((bits >> U(16)) & U(1))) >> U(16)",
        "bits >> U(16)",
        "decode",
        "int4",
    ),
    "high nibble first": Mutation(
        "bf16_blocks.py",
        "packed[i] = (low & _CODE) | np.uint8(high << np.uint8(4))",
        "packed[i] = (high & _CODE) | np.uint8(low << np.uint8(4))",
        "nvfp4",
        "bf16",
    ),
    "sign of zero kept in Quark's codes": Mutation(
        "bf16_blocks.py",
        "rule == MXFP4_QUARK",
        "rule == MXFP4_CT",
        "mxfp4",
        "bf16",
    ),
    "zero block gets 0.25 in compressed-tensors' arithmetic": Mutation(
        "scalars.py",
        "np.uint8(0x20) if code == 0",
        "np.uint8(0x28) if code == 0",
        "nvfp4_ct",
        "bf16",
    ),
    "INT4 nibbles swapped": Mutation(
        "nibbles.py",
        "builder.or_(low_codes, builder.shl(high_codes, four))",
        "builder.or_(high_codes, builder.shl(low_codes, four))",
        "nvfp4",
        "int4",
    ),
    "INT4 magnitudes of negative codes off": Mutation(
        "nibbles.py",
        "b2 ^ (b3 & (b0 | b1))",
        "b2 ^ (b3 & b0)",
        "nvfp4",
        "int4",
    ),
    "INT4 offset of 7": Mutation(
        "int4_blocks.py",
        "_nibble(u - 8,",
        "_nibble(u - 7,",
        "mxfp4",
        "int4",
    ),
    "INT4 codes down to -8 on Kimi's grid": Mutation(
        "int4.py",
        "scale = bf16_rounded(amax / F(7))",
        "scale = bf16_rounded(amax / F(8))",
        "int4",
        "bf16",
    ),
    "largest scale wins ties": Mutation(
        "sweep.py",
        "better = loss[i] < best[i]",
        "better = loss[i] <= best[i]",
        "mse",
        "bf16",
    ),
    "a beaten candidate survives, a winner does not": Mutation(
        "sweep_int4.py",
        "if theirs > ours or",
        "if theirs < ours or",
        "mse",
        "int4",
    ),
    "sweep stops where clipping begins": Mutation(
        "sweep_bf16.py",
        "if clipped > 0.0 and clipped * clipped > known:",
        "if clipped > 0.0:",
        "mse",
        "bf16",
    ),
}


def probe(package_parent, what, source):
    environment = {**os.environ, "PYTHONPATH": str(package_parent), "NUMBA_CACHE_DIR": str(package_parent / "cache")}
    command = [sys.executable, str(PROBE), what, source]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    parent = tmp_path_factory.mktemp("damaged")
    shutil.copytree(PACKAGE, parent / "halfbyte", ignore=shutil.ignore_patterns("__pycache__"))
    return parent


@pytest.mark.parametrize("probed", sorted({(m.encoder, m.source) for m in MUTATIONS.values()}))
def test_probe_passes_on_sound_kernels(copied, probed):
    done = probe(copied, *probed)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_damage_is_caught(copied, mutation):
    this = MUTATIONS[mutation]
    path = copied / "halfbyte" / "formats" / "cpu" / "kernels" / this.file
    text = path.read_text()
    assert this.sound in text, "the kernel changed: mutate it anew"
    try:
        path.write_text(text.replace(this.sound, this.damaged))
        done = probe(copied, this.encoder, this.source)
    finally:
        path.write_text(text)
    assert done.returncode == 1, f"not caught: {done.stderr}"
    assert "Traceback" not in done.stderr
