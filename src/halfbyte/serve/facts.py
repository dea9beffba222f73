"""Facts of a launch, used in the conditions and messages of rules: the checkpoint, the GPUs and the user's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.hashing import file_sha256
from halfbyte.serve.checkpoint_facts import BF16, Served
from halfbyte.serve.gpus import Gpus
from halfbyte.serve.settings import Setting

NONE = "none"
_FAST_GATES = (160, 256, 384)  # SGLang, layers/moe/topk.py
_AITER_HEADS = 16
_TRTLLM_EXPERTS = 4


@dataclass(frozen=True, slots=True)
class Wish:
    """The user's options for a launch; None where the launcher decides."""

    engine: str | None = None
    version: str | None = None  # a release, or a build in engines.yaml
    docker: bool = False
    context: int | None = None
    concurrency: int | None = None
    tp: int | None = None
    dcp: int | None = None
    ep: bool = False
    draft: str | None = None  # "auto", a Hub name, or a folder
    text_only: bool = False
    port: int | None = None
    hub: str | None = None  # organization/name[@commit]
    given: Sequence[str] = ()  # --set name=value
    emulate: bool = False  # with the vLLM plugin
    activations: str | None = None  # "off": emulate weights only


def checkpoint_facts(served: Served, wish: Wish) -> dict[str, Any]:
    """Return the facts of the checkpoint and the options, before any setting is chosen."""
    hub_name, _, commit = (wish.hub or "").partition("@")
    revision = commit or served.revision
    linked = served.folder.resolve().parent.name == "snapshots"
    # The plugin gives BF16 weights to the engine, so rules about its 4-bit kernels do not apply.
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
    """Return the facts of the chosen settings, for warnings and refusals; the choice itself cannot depend on them."""
    values = {setting.name: setting.value for setting in chosen}
    return {
        "batched_tokens": values.get("max_num_batched_tokens"),
        "eager": values.get("enforce_eager"),
        "moe_backend": values.get("moe_backend") or NONE,
    }


def machine_facts(gpus: Gpus) -> dict[str, Any]:
    """Return the facts of the GPUs."""
    return {"gpus": str(gpus), "vendor": gpus.vendor, "arch": gpus.arch, "interconnect": gpus.interconnect}


def parallel_facts(served: Served, tp: int, dcp: int) -> dict[str, Any]:
    """Return the facts that follow from tensor and decode context parallelism."""
    heads = served.heads or 0
    split = f"{heads} attention heads are divisible by {tp}"
    unknown = "config.json has no number of attention heads (num_attention_heads)"
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
    """Return the model name for clients: that of the repository or the folder."""
    if wish.hub:
        return wish.hub.partition("@")[0].rpartition("/")[2]
    path = served.folder.resolve()
    if path.parent.name == "snapshots":
        return path.parent.parent.name.rpartition("--")[2]
    return path.name.lstrip("-") or served.family  # engines would parse a leading dash as an option


def code_files(folder: Path) -> str:
    """Return the Python files that --trust-remote-code runs, each with its SHA-256."""
    paths = sorted(folder.glob("*.py"))
    return ", ".join(f"{path.name} sha256:{file_sha256(path)}" for path in paths) or "none, so it will fail"
