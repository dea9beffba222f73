"""The facts of a launch that conditions ask for and sentences name: of the checkpoint, the GPUs and what was wished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.serve.gpus import Gpus
from halfbyte.serve.served import BF16, Served
from halfbyte.serve.settings import Setting
from halfbyte.write import file_sha256

NONE = "none"
_FAST_GATES = (160, 256, 384)  # SGLang, layers/moe/topk.py
_AITER_HEADS = 16
_TRTLLM_EXPERTS = 4


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user asked for; None where the launcher decides."""

    engine: str | None = None
    version: str | None = None  # or the name of a build in engines.yaml
    docker: bool = False
    context: int | None = None
    concurrency: int | None = None
    tp: int | None = None
    dcp: int | None = None
    ep: bool = False
    draft: str | None = None  # "auto", a name on the Hub, or a folder
    text_only: bool = False
    port: int | None = None
    hub: str | None = None  # organisation/name[@commit]
    given: Sequence[str] = ()  # --set name=value
    emulate: bool = False  # through our plugin for vLLM
    activations: str | None = None  # "off": emulate weights only


def checkpoint_facts(served: Served, wish: Wish) -> dict[str, Any]:
    """Return what the checkpoint and the wish say before anything is decided."""
    hub_name, _, commit = (wish.hub or "").partition("@")
    revision = commit or served.revision
    linked = served.folder.resolve().parent.name == "snapshots"
    # Our plugin hands BF16 to the engine: what is known of its kernels for 4-bit experts does not matter then.
    quantization = BF16 if wish.emulate else served.quantization
    return {
        "name": served_name(served, wish),
        "family": served.family,
        "quantization": quantization,
        "format": quantization.partition("-")[0],
        "activations": NONE if wish.emulate else served.activations,
        "checkpoint_kv": served.kv_dtype or NONE,
        "mla": served.needs.latent is not None,
        "vision": served.vision,
        "text_only": wish.text_only,
        "uneven": served.uneven,
        "experts": served.experts,
        "experts_mod_4": served.experts % _TRTLLM_EXPERTS,
        "pruned": served.source_experts is not None,
        "kept": served.experts / served.source_experts if served.source_experts else None,
        "fast_gate": served.experts in _FAST_GATES,
        "heads": served.heads,
        "remote_tokenizer": served.remote_tokenizer,
        "linked": linked,
        "code_files": code_files(served.folder) if served.remote_tokenizer and not wish.hub else "",
        "hub": bool(wish.hub),
        "hub_name": hub_name,
        "revision": revision,
        "draft": None,
        "draft_mla": None,
        "ep": wish.ep,
        "emulate": wish.emulate,
        "emulated_activations": wish.activations or NONE,
        "concurrency": wish.concurrency,
        **chosen_facts(()),
    }


def chosen_facts(chosen: Sequence[Setting]) -> dict[str, Any]:
    """Return what sentences ask of the settings that were chosen; the choice itself cannot depend on it."""
    values = {one.name: one.value for one in chosen}
    return {
        "batched_tokens": values.get("max_num_batched_tokens"),
        "eager": values.get("enforce_eager"),
        "moe_backend": values.get("moe_backend") or NONE,
    }


def machine_facts(gpus: Gpus) -> dict[str, Any]:
    """Return what rules ask of the GPUs."""
    return {"gpus": str(gpus), "vendor": gpus.vendor, "arch": gpus.arch, "interconnect": gpus.interconnect}


def parallel_facts(served: Served, tp: int, dcp: int) -> dict[str, Any]:
    """Return what follows from a division over GPUs."""
    heads = served.heads or 0
    split = f"{heads} attention heads divide by {tp}"
    unknown = "config.json does not say how many attention heads there are (num_attention_heads)"
    return {
        "heads_reason": split if heads else unknown,
        "tp": tp,
        "dcp": dcp,
        "heads_per_gpu": heads // tp,
        "heads_mod_16": heads // tp % _AITER_HEADS,
        "aiter_tp": max(1, heads // _AITER_HEADS),
        "experts_left": served.experts % tp,
    }


def served_name(served: Served, wish: Wish) -> str:
    """Return the name under which clients ask for it: the repository's, or the folder's."""
    if wish.hub:
        return wish.hub.partition("@")[0].rpartition("/")[2]
    place = served.folder.resolve()
    if place.parent.name == "snapshots":
        return place.parent.parent.name.rpartition("--")[2]
    return place.name.lstrip("-") or served.family  # engines take what begins with a dash for an option


def code_files(folder: Path) -> str:
    """Return the Python files of a folder, each with its SHA-256: what --trust-remote-code runs."""
    found = sorted(folder.glob("*.py"))
    return ", ".join(f"{path.name} sha256:{file_sha256(path)}" for path in found) or "none, so that it will fail"
