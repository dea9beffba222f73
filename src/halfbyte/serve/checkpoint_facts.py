"""Facts of a checkpoint for the launcher, from its config, headers and folder, and refusal of invalid checkpoints.

No tensor data is read. Engines would load some invalid checkpoints without an error but answer incorrectly. The config
and headers are checked with those checks of `halfbyte audit` that need no tensor values: they know how vLLM matches the
ignore list and which scales it leaves uninitialized. The other checks come from the last audit's findings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.audit.checks import config, ignore, structure
from halfbyte.audit.findings import Finding
from halfbyte.audit.inputs import Contents, Evidence
from halfbyte.checkpoint.folder import CONFIG, Checkpoint, open_checkpoint
from halfbyte.checkpoint.identity import COMMIT_HASH
from halfbyte.checkpoint.output_folder import FOLDER, PLAN
from halfbyte.checkpoint.untrusted_files import json_object
from halfbyte.errors import CheckFailedError, CheckpointError
from halfbyte.evidence.audit import Audit
from halfbyte.evidence.measured_files import changed_file, content, unread_nbytes
from halfbyte.evidence.record import InvalidRecordError
from halfbyte.families.config_agreement import HF_QUANT_CONFIG, quantization_config, refuse_other_config
from halfbyte.families.linears import PLAIN
from halfbyte.families.model import Model, describe
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.prune_plan import PLAN as PRUNE_PLAN
from halfbyte.serve.needs import Needs, needs_of
from halfbyte.ui.escape import pasted

BF16 = "bf16"
_KIMI_VOCABULARY = 163_840  # of every Kimi-K2 release; smaller models have smaller vocabularies
_KIMI_EXPERTS = 384
_KIMI_END_OF_TURN = 163_586  # K2.6 stops here; K2.5 at 163,585
_INSTRUCT_CONTEXT = 131_072  # the first K2; later releases have twice that
_THINKING_EPSILON = 1e-5  # K2-Thinking; the instruct models have 1e-6
_NAMED = re.compile(r"kimi-k2\.([567])", re.IGNORECASE)
_README_NBYTES = 1 << 16
_COUNTS = ("num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")

# Checks whose failure means wrong answers; after a failure of any other check the checkpoint can still be served.
_GARBAGE = ("structure", "coverage", "ignore", "config", "index", "bytes", "scales", "fused", "vllm")

_MOST_HASHED_NBYTES = 4 * 10**9  # takes a few seconds; more hashing would delay the start
_TOKENIZERS = ("tokenizer.json", "tiktoken.model", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class Served:
    """Facts of a checkpoint for the launcher.

    `family` is a release such as "kimi-k2.6" if known, else config.json's model_type. `activations` is the format to
    which engines quantize the inputs of quantized linears: "nvfp4", "mxfp4", "fp8" or "none". `experts` is the number
    in the largest layer, 0 for a dense model. `source_experts` is the number before pruning, None if not pruned.
    """

    folder: Path
    family: str
    quantization: str
    activations: str
    kv_dtype: str | None  # as declared in config.json
    experts: int
    uneven: bool
    source_experts: int | None
    vision: bool
    remote_tokenizer: bool  # tiktoken files without a tokenizer.json, which need remote code
    revision: str | None  # the commit on the Hub, if the folder records it
    context: int | None
    heads: int | None
    needs: Needs


def served(folder: Path) -> Served:
    """Read a checkpoint's folder; raise CheckpointError if it is incomplete or engines would misread it."""
    refuse_unfinished(folder)
    checkpoint = open_checkpoint(folder)
    model = describe(checkpoint, uneven=True)
    refuse_other_config(checkpoint, model)
    refuse_invalid(checkpoint, model)
    _refuse_counts(model.family.text(checkpoint.config))
    return served_checkpoint(checkpoint, model)


def _refuse_counts(text: Mapping[str, Any]) -> None:
    """Refuse invalid counts in config.json, which would silently affect the launch; missing ones are allowed."""
    for name in _COUNTS:
        value = text.get(name)
        if value is not None and (type(value) is not int or value < 1):
            what = f"{name} is {value!r}, not an integer of at least 1"
            raise CheckpointError(what, where=CONFIG, fix="download config.json again")


def served_checkpoint(checkpoint: Checkpoint, model: Model, *, modelopt: Mapping[str, Any] | None = None) -> Served:
    """Return the facts of an open checkpoint.

    `modelopt` is the content of a planned hf_quant_config.json that is not yet in the folder.
    """
    folder, config = checkpoint.root, checkpoint.config
    block = quantization_config(config, model) or (_modelopt_file(folder) if modelopt is None else modelopt)
    format = _format(model)
    needs = needs_of(checkpoint, model)
    return Served(
        folder=folder,
        family=_family(checkpoint, model),
        quantization=FORMATS[format].served_as,
        activations=_activations(format, block),
        kv_dtype=_kv_dtype(block),
        experts=model.experts,
        uneven=len({row.experts for row in needs.routed}) > 1,
        source_experts=_source_experts(checkpoint, model),
        vision=any(place.role == "vision" for place, _ in model.plain.values()),
        remote_tokenizer=_remote_tokenizer(folder),
        revision=_revision(folder),
        context=needs.context,
        heads=needs.heads,
        needs=needs,
    )


def _format(model: Model) -> str:
    """Return the format with the most quantized bytes, or bf16."""
    nbytes: Counter[str] = Counter()
    for linear, number in model.kinds():
        if linear.format not in PLAIN:
            nbytes[linear.format] += number * linear.nbytes
    return nbytes.most_common(1)[0][0] if nbytes else BF16


def _activations(format: str, block: Mapping[str, Any]) -> str:
    """Return the format of the inputs of quantized linears; quantization_config may declare weight-only."""
    activations = FORMATS[format].activations
    if activations is None:
        return "none"
    inputs = [group["input_activations"] for group in _groups(block) if "input_activations" in group]
    quark = block.get("global_quant_config")
    if isinstance(quark, Mapping):
        inputs.append(cast("Mapping[str, Any]", quark).get("input_tensors"))
    if (inputs and not any(inputs)) or "A16" in str(block.get("quant_algo", "")):
        return "none"
    return activations.name


def _groups(block: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    groups = block.get("config_groups")
    if isinstance(groups, Mapping):
        for group in cast("Mapping[str, Any]", groups).values():
            if isinstance(group, Mapping):
                yield cast("Mapping[str, Any]", group)


def _kv_dtype(block: Mapping[str, Any]) -> str | None:
    scheme = block.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        row = cast("Mapping[str, Any]", scheme)
        return "fp8" if (row.get("num_bits"), row.get("type")) == (8, "float") else None
    return "fp8" if str(block.get("kv_cache_quant_algo", "")).upper() == "FP8" else None


def _modelopt_file(folder: Path) -> Mapping[str, Any]:
    """Return the block of ModelOpt's hf_quant_config.json, which engines read if config.json has none."""
    inner = json_object(folder / HF_QUANT_CONFIG).get("quantization")
    return cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else {}


def _family(checkpoint: Checkpoint, model: Model) -> str:
    """Identify a Kimi release by its config, or by its name where the configs are equal."""
    config = checkpoint.config
    text = model.family.text(config)
    model_type = str(config.get("model_type"))
    if text.get("vocab_size") != _KIMI_VOCABULARY:
        return model_type
    if model_type == "kimi_k25":
        named = next((match[1] for name in _names(checkpoint.root) if (match := _NAMED.search(name))), None)
        if named is None:
            named = "6" if config.get("eos_token_id", text.get("eos_token_id")) == _KIMI_END_OF_TURN else "5"
        return "kimi-k2.7-code" if named == "7" else f"kimi-k2.{named}"
    if text.get("max_position_embeddings") == _INSTRUCT_CONTEXT:
        return "kimi-k2-instruct"
    return "kimi-k2-thinking" if text.get("rms_norm_eps") == _THINKING_EPSILON else "kimi-k2-instruct-0905"


def _names(folder: Path) -> Iterator[str]:
    """Yield the names of a checkpoint: of its repository, of its folder, and on its model card."""
    path = folder.resolve()
    if path.parent.name == "snapshots":
        yield path.parent.parent.name
    yield path.name
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_README_NBYTES).splitlines()
    except OSError:
        return
    base = next((row for row, line in enumerate(lines) if line.startswith("base_model:")), None)
    if base is not None:
        yield from lines[base : base + 2]
    yield from [line for line in lines if line.startswith("# ")][:1]


def _source_experts(checkpoint: Checkpoint, model: Model) -> int | None:
    router = json_object(checkpoint.root / FOLDER / PRUNE_PLAN).get("router")
    before = cast("Mapping[str, Any]", router).get("experts") if isinstance(router, Mapping) else None
    if type(before) is int:
        return before if before > model.experts else None
    is_kimi = model.family.text(checkpoint.config).get("vocab_size") == _KIMI_VOCABULARY
    return _KIMI_EXPERTS if is_kimi and 0 < model.experts < _KIMI_EXPERTS else None


def _remote_tokenizer(folder: Path) -> bool:
    if (folder / "tokenizer.json").exists():
        return False
    maps = json_object(folder / "tokenizer_config.json").get("auto_map")
    return (folder / "tiktoken.model").exists() or (isinstance(maps, Mapping) and "AutoTokenizer" in maps)


def _revision(folder: Path) -> str | None:
    """Return the commit of a download: part of the path in the Hub cache, in a metadata file with `--local-dir`."""
    path = folder.resolve()
    if path.parent.name == "snapshots" and COMMIT_HASH.fullmatch(path.name):
        return path.name
    try:
        metadata = (folder / ".cache/huggingface/download" / f"{CONFIG}.metadata").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    commit = metadata.splitlines()[0].strip() if metadata.strip() else ""
    return commit if COMMIT_HASH.fullmatch(commit) else None


def refuse_invalid(checkpoint: Checkpoint, model: Model) -> None:
    """Refuse a missing input scale, and an ignore list or a declared format that contradicts the tensors."""
    contents = Contents(model.family, model.linears, model.plain, ())
    evidence = Evidence(checkpoint, unreadable={}, index=None, contents=contents, recorded=None, journal={}, plan=None)
    for finding in (*structure(evidence), *ignore(evidence), *config(evidence)):
        if finding.level == "bad":
            raise CheckpointError(_sentence(finding), where=str(checkpoint.root), fix=finding.fix)


def audited(folder: Path) -> list[str]:
    """Return warnings about the last audit; raise CheckFailedError if a failed check means wrong answers."""
    command = f"halfbyte audit {pasted(folder)}"
    if not (folder / FOLDER / PLAN).exists():
        limit = "its result is stored only for checkpoints that halfbyte wrote"
        return [f"no audit result found: `{command}` checks more than the headers; {limit}"]
    path = folder / FOLDER / Audit.file
    try:
        audit = Audit.read(path)
    except (FileNotFoundError, InvalidRecordError):
        audit = None
    if audit is None or audit.plan != json_object(folder / FOLDER / PLAN).get("fingerprint"):
        return [f"not audited: only the headers were checked, `{command}` checks the values too"]
    failed = [finding for finding in audit.findings if finding.level == "bad"]
    for finding in failed:
        if finding.check in _GARBAGE:
            what = f"its last audit failed: {finding.check}: {finding.text}"
            raise CheckFailedError(what, where=str(path), fix=f"fix it, then run {command}")
    why = _other_files(folder, audit)  # failures count until another audit passes, even if files changed
    changed = [f"{why}: {command}"] if why else []
    return [*(f"! its last audit failed: {bad.check}: {bad.text}; once fixed: {command}" for bad in failed), *changed]


def _other_files(folder: Path, audit: Audit) -> str:
    """Return why the audit may not apply to the current files; empty if it does."""
    if unread_nbytes(folder) > _MOST_HASHED_NBYTES:
        return "its files were copied or changed after the audit and not hashed again"
    if not audit.measured_files:
        return "its audit does not record which files it checked"
    changed = changed_file(audit.measured_files, content(folder), weights_only=True)
    return f"not audited since {changed} changed" if changed else ""


def refuse_unfinished(folder: Path) -> None:
    """Refuse an output of an unfinished run, which has no config.json yet."""
    if (folder / FOLDER).is_dir() and not (folder / CONFIG).exists():
        fix = "run the `halfbyte quantize` or `halfbyte prune` command that wrote it again, to resume"
        raise CheckpointError("this output is incomplete", where=str(folder), fix=fix)


def without_tokenizer(folder: Path) -> list[str]:
    """Return a warning if the folder has no tokenizer."""
    if any((folder / name).exists() for name in _TOKENIZERS):
        return []
    return ["! the folder has no tokenizer, so engines fail to start: copy it from the source checkpoint"]


def _sentence(finding: Finding) -> str:
    example = f" ({finding.examples[0]})" if finding.examples else ""
    return f"{finding.text}{example}: {finding.why}"
