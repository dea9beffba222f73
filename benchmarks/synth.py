"""Checkpoints with exactly Kimi-K2.6's geometry, for measurements without a real one.

    python benchmarks/synth.py --headers-only DIR              the whole model: real headers, holes for weights
    python benchmarks/synth.py --layers 3 --experts 384 DIR    some layers, filled with INT4 weights on Kimi's grid

Holes take no disk: 595 GB of them need 30 MB. Filled shards look like a release to every kernel: codes of Gaussian
weights under `s = bf16(amax / 7)`, so that each group holds a 7 or -7, and rows that differ in size. A few experts are
computed; the others are their rows in another order, with scales that differ by a power of two. It is as fast as the
disk.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from halfbyte.checkpoint.headers import TensorInfo, TensorSpec, lay_out
from halfbyte.families.kimi_k25.geometry import KIMI_K26, Geometry, release_config, release_shards

PUBLISHED = {"tensors": 208_550, "shards": 64, "payload_nbytes": 595_148_192_736, "header_nbytes": 29_795_472}
GENERATION_CONFIG = '{\n  "max_length": 262144,\n  "eos_token_id": 163586\n}'
DISTINCT_EXPERTS = 2
LEAVES = ("gate_proj", "up_proj", "down_proj")
COMMON_BF16 = 8 * 1024**2  # random values that all BF16 tensors are cut from
BF16_ONE = 0x3F80
EXPONENT_STEP = 1 << 7  # of a BF16 pattern
Array = Any


def write_headers(folder: Path, geometry: Geometry = KIMI_K26) -> dict[str, int]:
    """Write every shard as its header and a hole; return the counts."""
    return _write(folder, geometry, None)


def write_layers(folder: Path, geometry: Geometry, seed: int = 0) -> dict[str, int]:
    """Write every shard with weights; return the counts."""
    return _write(folder, geometry, Weights(geometry, seed))


def tiny(folder: Path) -> dict[str, int]:
    """Write a checkpoint with Kimi-K2.6's names and structure and small matrices: 3 layers, 8 experts, a few MB."""
    small = replace(
        KIMI_K26, layers=3, experts=8, width=256, dense_width=512, expert_width=128, vocabulary=512, heads=4
    )
    small = replace(small, q_rank=64, kv_rank=64, vision_blocks=1, vision_width=64, vision_mlp_width=96)
    return write_layers(folder, small)


def _write(folder: Path, geometry: Geometry, weights: Weights | None) -> dict[str, int]:
    return write_shards(folder, release_shards(geometry), release_config(geometry), weights)


def write_shards(
    folder: Path, shards: Mapping[str, Sequence[TensorSpec]], config: Mapping[str, Any], weights: Weights | None = None
) -> dict[str, int]:
    """Write shards, with holes where no weights are given, and the small files beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    counted = {"tensors": 0, "shards": len(shards), "payload_nbytes": 0, "header_nbytes": 0}
    for shard, specs in shards.items():
        head, infos = lay_out(specs, shard, metadata=False)  # as Moonshot published them
        with (folder / shard).open("wb", buffering=0) as file:
            file.write(head)
            if weights is None:
                file.truncate(infos[-1].end)
            else:
                for info in infos:
                    for piece in weights.pieces(info):
                        file.write(piece)
        counted["tensors"] += len(infos)
        counted["header_nbytes"] += len(head)
        counted["payload_nbytes"] += sum(info.nbytes for info in infos)
    (folder / "model.safetensors.index.json").write_bytes(index_of(shards, counted["payload_nbytes"]))
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(GENERATION_CONFIG)
    return counted


def index_of(shards: Mapping[str, Sequence[TensorSpec]], payload_nbytes: int) -> bytes:
    """Return the model.safetensors.index.json of shards."""
    weight_map = {spec.name: shard for shard, specs in shards.items() for spec in specs}
    index = {"metadata": {"total_size": payload_nbytes}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2).encode()


class Weights:
    """The bytes of any tensor of the model; the same seed gives the same ones."""

    def __init__(self, geometry: Geometry, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        values = self.random.standard_normal(COMMON_BF16, np.float32) / 50
        self.bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
        into, out_of = (geometry.expert_width, geometry.width), (geometry.width, geometry.expert_width)
        made_in = [self._int4(into) for _ in range(DISTINCT_EXPERTS)]
        made_out = [self._int4(out_of) for _ in range(DISTINCT_EXPERTS)]
        self.experts = dict(zip(LEAVES, (made_in, made_in, made_out), strict=True))

    def _int4(self, shape: tuple[int, int]) -> dict[str, Array]:
        from halfbyte.formats.codec import encode

        values = self.random.standard_normal(shape, np.float32)
        values *= np.exp(self.random.normal(-4, 0.3, (shape[0], 1))).astype(np.float32)
        return dict(encode(values, "int4", method="kimi").tensors)

    def pieces(self, info: TensorInfo) -> Iterator[memoryview]:
        """Yield a tensor's bytes in pieces that are already in memory."""
        if ".mlp.experts." in info.name:
            yield from self._expert(info)
        elif info.dtype == "F32":
            yield _view(np.linspace(-0.1, 0.1, info.nbytes // 4, dtype=np.float32))
        elif "norm" in info.name and info.name.endswith(".weight"):
            yield _view(np.full(info.nbytes // 2, BF16_ONE, np.uint16))
        else:
            left, start = info.nbytes // 2, sum(info.name.encode()) * 4099 % (COMMON_BF16 // 2)
            while left:
                piece = self.bf16[start : start + left]
                yield _view(piece)
                left, start = left - piece.size, 0

    def _expert(self, info: TensorInfo) -> Iterator[memoryview]:
        module, _, suffix = info.name.rpartition(".")
        *_, layer, _, _, expert, leaf = module.split(".")
        number = (int(layer) * 1000 + int(expert)) * len(LEAVES) + LEAVES.index(leaf)
        made = self.experts[leaf][number % DISTINCT_EXPERTS][suffix]
        if suffix == "weight_shape":
            yield _view(made)
            return
        if suffix == "weight_scale":
            made = made + np.uint16(number % 2 * EXPONENT_STEP)
        turn = 7919 * number % made.shape[0]  # the same for codes and scales
        yield _view(made[turn:])
        yield _view(made[:turn])


def _view(array: Array) -> memoryview:
    return memoryview(np.ascontiguousarray(array).view(np.uint8).reshape(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--headers-only", action="store_true", help="all 61 layers, with holes for weights")
    parser.add_argument("--layers", type=int, default=2, help="decoder layers, the first one dense")
    parser.add_argument("--experts", type=int, default=KIMI_K26.experts)
    parser.add_argument("--vocabulary", type=int, default=KIMI_K26.vocabulary, help="rows of embedding and head")
    parser.add_argument("--no-vision", action="store_true", help="no vision tower and projector, which are 0.9 GB")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    if args.headers_only:
        counted = write_headers(args.folder)
        assert counted == PUBLISHED, f"the geometry is not the published one: {counted}"
    else:
        geometry = replace(KIMI_K26, layers=args.layers, experts=args.experts, vocabulary=args.vocabulary)
        geometry = replace(geometry, vision_blocks=0) if args.no_vision else geometry
        counted = write_layers(args.folder, geometry, args.seed)
    seconds = time.perf_counter() - start
    print(json.dumps({**counted, "seconds": round(seconds, 2)}))


if __name__ == "__main__":
    main()
