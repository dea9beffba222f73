"""Facts of a launch for the conditions and messages of rules: checkpoint, draft, GPUs and the user's options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.hashing import file_sha256
from halfbyte.errors import UsageError
from halfbyte.serve import launch_data
from halfbyte.serve.checkpoint_facts import BF16, Served
from halfbyte.serve.gpus import Gpus
from halfbyte.serve.needs import Draft, draft_of, eagle3_mla
from halfbyte.serve.settings import Note, Setting

NONE = "none"
_FAST_GATES = (160, 256, 384)  # SGLang, layers/moe/topk.py
_AITER_HEADS = 16
_TRTLLM_EXPERTS = 4

_AUTO = "auto"
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_FIX = "use --draft auto, a Hub name such as organization/name, or the folder of a draft"
_JOINS_STATES = "fc"  # a linear that only Eagle3 drafts have
_LATENT = "kv_a_proj_with_mqa"
_ESTIMATE = Draft(5 * 10**9)  # about one attention layer, a dense MLP and an output head of Kimi's width


@dataclass(frozen=True, slots=True)
class LaunchOptions:
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
    settings: Sequence[str] = ()  # --set name=value
    emulate: bool = False  # with the vLLM plugin
    activations: str | None = None  # "off": emulate weights only


def checkpoint_facts(served: Served, options: LaunchOptions) -> dict[str, Any]:
    """Return the facts of the checkpoint and the options, before any setting is chosen."""
    hub_name, _, commit = (options.hub or "").partition("@")
    revision = commit or served.revision
    linked = served.folder.resolve().parent.name == "snapshots"
    # The plugin gives BF16 weights to the engine, so rules about its 4-bit kernels do not apply.
    quantization = BF16 if options.emulate else served.quantization
    return {
        "name": served_name(served, options),
        "family": served.family,
        "quantization": quantization,
        "format": quantization.partition("-")[0],
        "activations": NONE if options.emulate else served.activations,
        "checkpoint_kv": served.kv_dtype or NONE,
        "mla": served.needs.latent is not None,
        "vision": served.vision,
        "text_only": options.text_only,
        "uneven": served.uneven,
        "experts": served.experts,
        "experts_mod_4": served.experts % _TRTLLM_EXPERTS,
        "pruned": served.source_experts is not None,
        "kept": served.experts / served.source_experts if served.source_experts else None,
        "fast_gate": served.experts in _FAST_GATES,
        "heads": served.heads,
        "remote_tokenizer": served.remote_tokenizer,
        "linked": linked,
        "code_files": code_files(served.folder) if served.remote_tokenizer and not options.hub else "",
        "hub": bool(options.hub),
        "hub_name": hub_name,
        "revision": revision,
        "draft": None,
        "draft_mla": None,
        "ep": options.ep,
        "emulate": options.emulate,
        "emulated_activations": options.activations or NONE,
        "concurrency": options.concurrency,
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


def served_name(served: Served, options: LaunchOptions) -> str:
    """Return the model name for clients: that of the repository or the folder."""
    if options.hub:
        return options.hub.partition("@")[0].rpartition("/")[2]
    path = served.folder.resolve()
    if path.parent.name == "snapshots":
        return path.parent.parent.name.rpartition("--")[2]
    return path.name.lstrip("-") or served.family  # engines would parse a leading dash as an option


def code_files(folder: Path) -> str:
    """Return the Python files that --trust-remote-code runs, each with its SHA-256."""
    paths = sorted(folder.glob("*.py"))
    return ", ".join(f"{path.name} sha256:{file_sha256(path)}" for path in paths) or "none, so it will fail"


def draft_facts(family: str, name: str | None) -> dict[str, Any]:
    """Return the facts of the draft; raise UsageError if it is not a valid draft."""
    if name is None:
        return {}
    if name == _AUTO:
        known = launch_data.drafts().get(family)
        if not known:
            fix = "choose one with --draft ORGANIZATION/NAME"
            raise UsageError(f"no Eagle3 draft is known for {family}", where="--draft", fix=fix)
        return {"draft": known[0].model, "draft_mla": known[0].mla}
    if name and Path(name).is_dir():
        return {"draft": name, "draft_mla": _LATENT in _parts_of_draft(Path(name))}
    if not _HUB_NAME.fullmatch(name):
        raise UsageError(f"'{name}' is neither a folder nor a Hub name", where="--draft", fix=_FIX)
    return {"draft": name, "draft_mla": _is_latent(name)}


def draft_size(name: str | None) -> Draft | None:
    """Return a draft's size, from its headers, from the published geometry of MLA drafts, or as an estimate."""
    if name is None:
        return None
    if Path(name).is_dir():
        return draft_of(Path(name))
    return eagle3_mla() if _is_latent(name) else _ESTIMATE


def draft_notes(name: str | None) -> list[Note]:
    """Return a warning if the size of a draft is an estimate."""
    if name is None or Path(name).is_dir() or _known().get(name):
        return []
    assumed = "that of published MLA drafts" if _is_latent(name) else f"{_ESTIMATE.nbytes // 10**9} GB"
    text = (
        f"the size of {name} is unknown and assumed to be {assumed}; download it and pass its folder for the exact size"
    )
    return [Note(text, "halfbyte")]


def _known() -> dict[str, bool]:
    """Return for each known draft whether its attention is MLA."""
    return {row.model: row.mla for rows in launch_data.drafts().values() for row in rows}


def _is_latent(name: str) -> bool:
    return _known().get(name, "mla" in name.lower())


def _parts_of_draft(folder: Path) -> set[str]:
    """Return the parts of a draft's tensor names."""
    words = {word for name in open_checkpoint(folder).tensors for word in name.split(".")}
    if _JOINS_STATES not in words:
        what = f"not an Eagle3 draft: it has no `{_JOINS_STATES}`, which joins the hidden states of the model"
        raise UsageError(what, where=str(folder), fix=_FIX)
    return words
