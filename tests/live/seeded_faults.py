"""Real-world faults, seeded into kimi-mini's NVFP4 checkpoint or its server, one at a time.

A fault is a damaged folder, engine options or variables, or a proxy. The table of faults and probes (`python -m
benchmarks.fault_table`) and the live tests use these.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from served_variants import change_tensors, make_variant

HEALTHY = "nvfp4-modelopt"
PLUGINS = Path(__file__).with_name("fault_plugins")
LAYER, EXPERT = 2, 7
_MLP = f"language_model.model.layers.{LAYER}.mlp"
PARSERS = ["--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2", "--reasoning-parser", "kimi_k2"]

Damage = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    name: str
    what: str
    damage: Damage | None = None  # to a copy of the checkpoint
    variant: str = HEALTHY
    parsers: list[str] = field(default_factory=lambda: list(PARSERS))
    options: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    proxy: str | None = None  # what faulty_proxy.py does

    def folder(self, variants: Path, work: Path) -> Path:
        """Return the checkpoint to serve: the healthy one, or a damaged copy below `work`."""
        healthy = make_variant(self.variant, variants)
        if self.damage is None:
            return healthy
        copy = work / f"fault-{self.name}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(healthy, copy)
        self.damage(copy)
        return copy


def _tensors(edit: Callable[[dict[str, Any]], None]) -> Damage:
    return lambda folder: change_tensors(folder, edit)


def _swap_nibbles(tensors: dict[str, Any]) -> None:
    """Swap low and high nibble of each byte of a layer's experts, like a packer with the other order."""
    for name, tensor in tensors.items():
        if name.startswith(f"{_MLP}.experts.") and name.endswith("proj.weight"):
            tensors[name] = (tensor << 4) | (tensor >> 4)


def _wrong_global_scale(tensors: dict[str, Any]) -> None:
    """Set a wrong global scale: one matrix of each expert of a layer is four times too large."""
    for name, tensor in tensors.items():
        if name.startswith(f"{_MLP}.experts.") and name.endswith("down_proj.weight_scale_2"):
            tensors[name] = tensor * 4


def _permute_router(tensors: dict[str, Any]) -> None:
    """Shift the rows of one router by one: experts get their neighbors' tokens."""
    name = f"{_MLP}.gate.weight"
    tensors[name] = tensors[name].roll(1, dims=0).contiguous()


def _lose_expert(tensors: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.startswith(f"{_MLP}.experts.{EXPERT}.")]:
        del tensors[name]


def _wrong_template(folder: Path) -> None:
    """Use another family's template: ChatML, which Kimi's tokenizer reads as plain text."""
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}<|im_start|>assistant\n"
    )


def _wrong_eos(folder: Path) -> None:
    """Use the end-of-text token instead of end-of-turn."""
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        config = json.loads(path.read_text())
        for part in (config, config.get("text_config", {})):
            if "eos_token_id" in part:
                part["eos_token_id"] = config.get("pad_token_id", 3071)
        path.write_text(json.dumps(config))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["eos_token"] = config.get("pad_token", "[PAD]")
    path.write_text(json.dumps(config))


FAULTS: tuple[Fault, ...] = (
    Fault("swapped-nibbles", f"nibbles of layer {LAYER}'s experts swapped", _tensors(_swap_nibbles)),
    Fault("global-scale", f"down_proj of layer {LAYER}'s experts four times too large", _tensors(_wrong_global_scale)),
    Fault("router-rows", f"rows of layer {LAYER}'s router moved by one", _tensors(_permute_router)),
    Fault("missing-expert", f"expert {EXPERT} of layer {LAYER} is not in the files", _tensors(_lose_expert)),
    Fault("chat-template", "ChatML's template", _wrong_template),
    Fault("eos", "the padding token taken for the end of a turn", _wrong_eos),
    Fault("no-tool-parser", "started without a tool parser", parsers=["--reasoning-parser", "kimi_k2"]),
    Fault("no-reasoning-parser", "started without a reasoning parser", parsers=PARSERS[:3]),
    Fault(
        "coarse-kv", "five levels for all of the KV cache", environment={"PYTHONPATH": str(PLUGINS / "coarse_kv")}
    ),
    Fault(
        "repetition-penalty", "repetition_penalty 2.0 as the server's default",
        options=["--override-generation-config", '{"repetition_penalty": 2.0}'],
    ),
    Fault("pruned-to-quarter", "8 of 32 experts (REAP)", variant="nvfp4-quarter-pruned"),
    Fault("dropped-chunks", "a proxy that loses every seventh event of a stream", proxy="drop-chunks"),
    Fault("cut-characters", "a proxy that cuts characters of several bytes", proxy="cut-characters"),
)  # fmt: skip
