"""Mutations of a finished checkpoint: each leaves a loadable folder with one defect.

`MUTATIONS` apply to any build, `PRUNED` to pruned builds. Index and total size always agree with the shards, so that
only the contents are wrong.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from halfbyte.checkpoint.headers import TensorSpec, lay_out, read_header

LAYER = "language_model.model.layers.1"
OTHER_LAYER = "language_model.model.layers.2"
GATE = f"{LAYER}.mlp.gate.weight"
BIAS = f"{LAYER}.mlp.gate.e_score_correction_bias"
NORM = f"{LAYER}.input_layernorm.weight"
EMBED, HEAD = "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"
INDEX = "model.safetensors.index.json"


class Build:
    """A checkpoint in memory: config, and tensors by name as (dtype, shape, bytes)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards: dict[str, list[str]] = {}
        self.tensors: dict[str, tuple[str, tuple[int, ...], bytearray]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            raw = path.read_bytes()
            for name, t in read_header(path, path.name).items():
                self.shards.setdefault(path.name, []).append(name)
                self.tensors[name] = (t.dtype, t.shape, bytearray(raw[t.begin : t.end]))
        self.config = json.loads((folder / "config.json").read_text())

    def part(self, module: str, *suffixes: str) -> str:
        """Return the name of the first existing tensor of a module."""
        return next(f"{module}.{suffix}" for suffix in suffixes if f"{module}.{suffix}" in self.tensors)

    def codes(self, expert: int = 2, leaf: str = "down_proj") -> str:
        return self.part(f"{LAYER}.mlp.experts.{expert}.{leaf}", "weight_packed", "weight")

    def scale(self, expert: int = 2, leaf: str = "down_proj") -> str:
        return self.part(f"{LAYER}.mlp.experts.{expert}.{leaf}", "weight_scale")

    def swap(self, one: str, other: str) -> None:
        """Exchange all tensors whose names start with one prefix or the other."""
        for name in [name for name in self.tensors if name.startswith(one)]:
            twin = other + name.removeprefix(one)
            self.tensors[name], self.tensors[twin] = self.tensors[twin], self.tensors[name]

    def scaled(self, name: str, factor: float) -> None:
        dtype, shape, data = self.tensors[name]
        assert dtype == "F32"
        self.tensors[name] = (dtype, shape, bytearray((np.frombuffer(data, np.float32) * factor).tobytes()))

    def add_to_byte(self, name: str, amount: int, at: int = 0) -> None:
        self.tensors[name][2][at] = (self.tensors[name][2][at] + amount) % 256

    def write(self) -> None:
        for shard, names in self.shards.items():
            specs = [TensorSpec(name, *self.tensors[name][:2]) for name in names]
            head, infos = lay_out(specs, shard)
            data = b"".join(bytes(self.tensors[info.name][2]) for info in infos)
            (self.folder / shard).write_bytes(head + data)
        total = sum(len(self.tensors[name][2]) for names in self.shards.values() for name in names)
        weight_map = {name: shard for shard, names in self.shards.items() for name in names}
        (self.folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
        (self.folder / "config.json").write_text(json.dumps(self.config))


def shard_of(build: Build, name: str) -> list[str]:
    return next(names for names in build.shards.values() if name in names)


def _flip_kept(build: Build) -> None:
    build.tensors[EMBED][2][1001] ^= 1


def _flip_attention(build: Build) -> None:
    build.tensors[f"{LAYER}.self_attn.o_proj.weight"][2][77] ^= 1


def _router_bias(build: Build) -> None:
    build.tensors[BIAS][2][2] ^= 1


def _router_rows(build: Build) -> None:
    dtype, shape, data = build.tensors[GATE]
    rows = np.frombuffer(bytes(data), np.uint8).reshape(shape[0], -1)[[1, 0, *range(2, shape[0])]]
    build.tensors[GATE] = (dtype, shape, bytearray(rows.tobytes()))


def _duplicate_expert(build: Build) -> None:
    source = f"{LAYER}.mlp.experts.0."
    for name in [name for name in build.tensors if name.startswith(source)]:
        build.tensors[f"{LAYER}.mlp.experts.3." + name.removeprefix(source)] = build.tensors[name]


def _swap_nibbles(build: Build) -> None:
    data = build.tensors[build.codes()][2]
    data[:] = bytes(((byte & 15) << 4) | (byte >> 4) for byte in data)


def _double_tensor_scale(build: Build) -> None:
    for leaf in ("gate_proj", "up_proj"):  # both, so that the fused pair still agrees
        module = f"{LAYER}.mlp.experts.2.{leaf}"
        build.scaled(build.part(module, "weight_scale_2", "weight_global_scale"), 2.0)


def _double_scale_in_bf16(build: Build) -> None:
    build.tensors[build.scale()][2][1] += 1  # the exponent of a BF16 has its last bit below, so that it is halfway up


def _zero_codes(build: Build) -> None:
    build.tensors[build.codes(1, "up_proj")][2][:] = bytes(len(build.tensors[build.codes(1, "up_proj")][2]))


def _missing(build: Build) -> None:
    shard_of(build, NORM).remove(NORM)


def _extra(build: Build) -> None:
    name = f"{LAYER}.self_attn.rotary_emb.inv_freq"
    shard_of(build, NORM).append(name)
    build.tensors[name] = ("F32", (8,), bytearray(32))


def _wrong_dtype(build: Build) -> None:
    _, shape, data = build.tensors[NORM]
    wide = (np.frombuffer(bytes(data), np.uint16).astype(np.uint32) << 16).tobytes()
    build.tensors[NORM] = ("F32", shape, bytearray(wide))


def _truncate_vocabulary(build: Build) -> None:
    for name in (EMBED, HEAD):
        dtype, (rows, width), data = build.tensors[name]
        build.tensors[name] = (dtype, (rows - 8, width), data[: -8 * width * 2])
    build.config["text_config"]["vocab_size"] -= 8


def _config_value(build: Build) -> None:
    build.config["text_config"]["routed_scaling_factor"] = 1.0


def _config_key(build: Build) -> None:
    build.config["text_config"]["attention_bias"] = True


def _fewer_active_experts(build: Build) -> None:
    build.config["text_config"]["num_experts_per_tok"] = 1


def _block_size(build: Build) -> None:
    def change(value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key == "group_size" and inner is not None:
                    value[key] = 128
                change(inner)

    before = json.dumps(build.config)
    change(build.config["quantization_config"])
    assert json.dumps(build.config) != before


def _ignore_list(build: Build) -> None:
    block = build.config["quantization_config"]
    key = next(key for key in ("ignore", "exclude") if key in block)
    block[key] = [pattern for pattern in block[key] if "shared_experts" not in pattern]


def _stale_block(build: Build) -> None:
    build.config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def _tokenizer(build: Build) -> None:
    (build.folder / "tiktoken.model").write_text("aGFsZg== 1\nYnl0ZQ== 0\n")


def _generation(build: Build) -> None:
    (build.folder / "generation_config.json").write_text('{"max_length": 262144, "eos_token_id": 1}')


def _template(build: Build) -> None:
    (build.folder / "chat_template.jinja").unlink()


def _new_file(build: Build) -> None:
    (build.folder / "added_tokens.json").write_text('{"<|x|>": 1}')


Mutation = Callable[[Build], None]
ANY: Mapping[str, Mutation] = {
    "a flipped bit in the embedding": _flip_kept,
    "a flipped bit in attention": _flip_attention,
    "a changed router bias": _router_bias,
    "two router rows swapped": _router_rows,
    "two experts swapped": lambda b: b.swap(f"{LAYER}.mlp.experts.0.", f"{LAYER}.mlp.experts.1."),
    "gate and up swapped": lambda b: b.swap(f"{LAYER}.mlp.experts.2.gate_proj.", f"{LAYER}.mlp.experts.2.up_proj."),
    "an expert twice": _duplicate_expert,
    "two layers swapped": lambda b: b.swap(f"{LAYER}.", f"{OTHER_LAYER}."),
    "one flipped nibble": lambda b: b.add_to_byte(b.codes(), 1, at=40),
    "a missing norm": _missing,
    "an extra tensor": _extra,
    "a norm of another dtype": _wrong_dtype,
    "a truncated vocabulary": _truncate_vocabulary,
    "another routed_scaling_factor": _config_value,
    "a new config key": _config_key,
    "fewer active experts": _fewer_active_experts,
    "another tokenizer": _tokenizer,
    "another generation config": _generation,
    "no chat template": _template,
    "a file that the source has not": _new_file,
}
QUANTIZED: Mapping[str, Mutation] = {
    "a zero scale": lambda b: b.tensors[b.scale()][2].__setitem__(slice(0, 2), bytes(2)),
    "a block scale off by one": lambda b: b.add_to_byte(b.scale(), 1),
    "codes of zero": _zero_codes,
    "swapped nibbles": _swap_nibbles,
    "another block size in the config": _block_size,
    "an ignore list without the shared experts": _ignore_list,
}
TENSOR_SCALE: Mapping[str, Mutation] = {"a doubled tensor scale": _double_tensor_scale}
