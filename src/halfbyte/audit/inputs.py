"""Inputs of an audit: an untrusted output folder, its plan and journal, and the source if given.

`open_checkpoint` and `describe` stop at the first error. An audit reports all errors, so this module reads the same
files with the same code but collects the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from halfbyte.audit.derive_plan import Derived, NotDerivedError, WrongRouterError, derive
from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.folder import (
    CONFIG,
    INDEX,
    MAX_HEADERS_NBYTES,
    Checkpoint,
    open_checkpoint,
    refuse_too_much,
    shard_path,
)
from halfbyte.checkpoint.headers import TensorInfo, read_header, read_header_length
from halfbyte.checkpoint.output_folder import FOLDER, PLAN, REDACTED
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.engine.pipeline import CHOSEN, JOURNAL, STATS_SHA256
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.family import SUFFIXES, Family, Place
from halfbyte.families.linears import (
    Signature,
    Stored,
    StoredLinear,
    identify,
    signature,
)
from halfbyte.families.model import Model, describe
from halfbyte.families.registry import family_of
from halfbyte.plan.manifest import Plan, make_plan
from halfbyte.plan.prune_plan import PLAN as PRUNE_PLAN
from halfbyte.plan.prune_plan import read_prune_plan
from halfbyte.plan.pruned import Kept, kept_digest
from halfbyte.plan.quantization_config import MODELOPT_FILE
from halfbyte.recipe.decisions import Recipe

BLOCK = "quantization_config"
DERIVED = "derived"  # key of `problems`: why no plan could be derived
ROUTERS = "routers"  # key of `problems`: a router row that is not in the source


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """The contents of plan.json."""

    fingerprint: str
    recipe: Recipe
    layers: int | None
    parts: Mapping[str, str]
    shards: Mapping[str, int]
    kept: Kept | None = None  # kept experts, if the recipe prunes
    stats_sha256: str | None = None  # of the statistics file; None if there is none or the run did not finish
    redacted: bool = False  # local paths were removed from the recipe, so its hash can no longer detect edits


@dataclass(frozen=True, slots=True)
class Contents:
    """The tensors of a checkpoint by role, and a message for each tensor without a role or without its scales."""

    family: Family
    linears: Mapping[str, StoredLinear]
    plain: Mapping[str, tuple[Place, TensorInfo]]
    problems: tuple[str, ...]


HowFar = Callable[[float, float, str], None]  # done, total, unit


def _unwatched(done: float, total: float, unit: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The inputs of all checks. Unreadable parts are None or empty, with the reason in `problems`."""

    checkpoint: Checkpoint  # from the headers of the readable shards
    unreadable: Mapping[str, str]  # shard -> why
    index: Mapping[str, Any] | None
    contents: Contents | None
    recorded: RecordedPlan | None
    journal: Mapping[str, Mapping[str, Any]]
    plan: Plan | None  # rebuilt from the source, or derived from both checkpoints
    problems: Mapping[str, str] = field(default_factory=dict[str, str])  # config.json, index, plan.json -> why
    derived: Derived | None = None  # for a folder without a plan, if the source is given
    how_far: HowFar = _unwatched  # progress callback

    @property
    def root(self) -> Path:
        """Return the folder."""
        return self.checkpoint.root

    @property
    def recipe(self) -> Recipe | None:
        """Return the recipe of the run, or the derived one."""
        if self.recorded is not None:
            return self.recorded.recipe
        return self.derived.plan.recipe if self.derived else None

    @property
    def kept(self) -> Kept | None:
        """Return the kept experts, recorded or derived; None if all were kept."""
        if self.recorded is not None:
            return self.recorded.kept
        return self.derived.plan.kept if self.derived else None

    @property
    def model(self) -> Contents:
        """Return the contents, for checks that require them."""
        assert self.contents is not None
        return self.contents


def gather(out: Path, against: Path | None, *, recorded: bool = True) -> Evidence:
    """Read headers, config, index, plan and journal of a folder; raise CheckpointError only if it has no shards.

    Without `recorded`, a plan in the folder is ignored and derived instead.
    """
    problems: dict[str, str] = {}
    config = _read_json(out / CONFIG, problems)
    index = _read_json(out / INDEX, problems) if (out / INDEX).exists() else None
    shards = sorted(path.name for path in out.glob("*.safetensors"))
    if not shards:
        open_checkpoint(out)  # raises an error for this folder
    tensors: dict[str, TensorInfo] = {}
    unreadable: dict[str, str] = {}
    sizes: dict[str, int] = {}
    left = MAX_HEADERS_NBYTES
    for shard in shards:
        try:
            path = shard_path(out, shard)
            left -= read_header_length(path, shard)
            refuse_too_much(left, shard)
            tensors |= read_header(path, shard)
            sizes[shard] = (out / shard).stat().st_size
        except CheckpointError as error:
            unreadable[shard] = error.what
    checkpoint = Checkpoint(out, config or {}, tensors, sizes)
    recorded_plan = _read_plan(out / FOLDER / PLAN, problems) if recorded else None
    contents = _sort(checkpoint, problems)
    plan = _rebuild_plan(against, recorded_plan) if against else None
    derived = _derive(against, checkpoint, contents, problems) if against and recorded_plan is None else None
    return Evidence(
        checkpoint=checkpoint,
        unreadable=unreadable,
        index=index,
        contents=contents,
        recorded=recorded_plan,
        journal={str(line.get("shard")): line for line in Journal(out / FOLDER / JOURNAL).lines()},
        plan=derived.plan if derived else plan,
        problems=problems,
        derived=derived,
    )


def _derive(
    source: Path, checkpoint: Checkpoint, contents: Contents | None, problems: dict[str, str]
) -> Derived | None:
    """Derive the plan from headers, config and routers; record the reason in `problems` if that fails."""
    if contents is None:
        problems[DERIVED] = "tensor roles require a readable config.json"
        return None
    try:
        return derive(source, checkpoint, contents, quantization_block(checkpoint, contents.family.text_config))
    except NotDerivedError as error:
        problems[DERIVED] = str(error)
        if isinstance(error, WrongRouterError):
            problems[ROUTERS] = str(error)
    return None


def quantization_block(checkpoint: Checkpoint, text_config: str | None) -> Mapping[str, Any] | None:
    """Return the quantization block that vLLM would read: top level, ModelOpt's own file, then the text model's."""
    if isinstance(checkpoint.config.get(BLOCK), dict):
        return checkpoint.config[BLOCK]
    return modelopt_block(checkpoint.root) or nested_block(checkpoint.config, text_config)


def modelopt_block(root: Path) -> Mapping[str, Any] | None:
    """Return the contents of ModelOpt's own file, if there is one."""
    try:
        content = read_json(root / MODELOPT_FILE)
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None


def nested_block(config: Mapping[str, Any], text_config: str | None) -> Mapping[str, Any] | None:
    """Return the block inside the text model's config."""
    text = config.get(text_config) if text_config else None
    block = cast("dict[str, Any]", text).get(BLOCK) if isinstance(text, dict) else None
    return cast("dict[str, Any]", block) if isinstance(block, dict) else None


def _read_json(path: Path, problems: dict[str, str]) -> dict[str, Any] | None:
    try:
        content = read_json(path)
    except FileNotFoundError:
        problems[path.name] = f"{path.name} is missing"
    except (OSError, ValueError):
        problems[path.name] = f"{path.name} is not JSON"
    else:
        if isinstance(content, dict):
            return cast("dict[str, Any]", content)
        problems[path.name] = f"{path.name} is not a JSON object"
    return None


def _read_plan(path: Path, problems: dict[str, str]) -> RecordedPlan | None:
    if not path.exists() or (raw := _read_json(path, problems)) is None:
        return None
    from halfbyte.recipe import schema as recipe_schema  # noqa: PLC0415 - pydantic, to validate the untrusted recipe

    try:
        recipe = recipe_schema.Recipe.model_validate(raw["recipe"]).decided()
        parts = {str(name): str(part) for name, part in raw["parts"].items()}
        shards = {str(name): int(nbytes) for name, nbytes in raw["shards"].items()}
        layers = None if parts["layers"] == "all" else int(parts["layers"])
        kept = _read_prune_plan(path.with_name(PRUNE_PLAN), raw, problems) if recipe.prune is not None else None
        same = recipe.fingerprint() == parts["recipe"]
        redacted = raw.get(REDACTED) is True and not same
        recorded = RecordedPlan(
            str(raw["fingerprint"]), recipe, layers, parts, shards, kept, raw.get(STATS_SHA256), redacted
        )
    except (KeyError, ValueError, TypeError, AttributeError):  # pydantic's ValidationError is a ValueError
        problems[PLAN] = "plan.json is not a plan of this version of halfbyte"
        return None
    if not same and not redacted:
        problems[PLAN] = "the recipe in plan.json was changed after the plan was created"
    return recorded


def _read_prune_plan(path: Path, plan: Mapping[str, Any], problems: dict[str, str]) -> Kept | None:
    """Return the kept experts if they match the hash in plan.json, which is written before or at the end of the run."""
    try:
        kept = read_prune_plan(path).kept()
    except UsageError as error:
        problems[PRUNE_PLAN] = f"{FOLDER}/{PRUNE_PLAN}: {error.what}"
        return None
    if kept_digest(kept) not in (plan["parts"].get("kept"), plan.get(CHOSEN)):
        problems[PRUNE_PLAN] = f"{FOLDER}/{PRUNE_PLAN} was changed after the run"
        return None
    return kept


def _sort(checkpoint: Checkpoint, problems: dict[str, str]) -> Contents | None:
    """Assign a role to every tensor and a format to every linear, collecting errors."""
    if not checkpoint.config:
        problems.setdefault(CONFIG, f"{CONFIG} is empty")
        return None
    try:
        family = family_of(checkpoint.config)
    except CheckpointError as error:
        problems[CONFIG] = error.what
        return None
    modules: dict[str, dict[str, TensorInfo]] = {}
    plain: dict[str, tuple[Place, TensorInfo]] = {}
    linears: dict[str, StoredLinear] = {}
    broken: list[str] = []
    for tensor in checkpoint.tensors.values():
        module, _, suffix = tensor.name.rpartition(".")
        if suffix in SUFFIXES and family.linear(module):
            modules.setdefault(module, {})[suffix] = tensor
            continue
        try:
            plain[tensor.name] = (family.other(tensor.name), tensor)
        except CheckpointError as error:
            broken.append(error.what)
    known: dict[Signature, Stored] = {}
    for module, parts in modules.items():
        place, storage = family.linear(module), signature(parts)
        assert place is not None
        try:
            stored = known.get(storage) or identify(storage, module)
        except CheckpointError as error:
            broken.append(f"{module}: {error.what}")
            continue
        known[storage] = stored
        linears[module] = StoredLinear(module, *place, stored.format, stored.shape, stored.group, parts)
    return Contents(family, linears, plain, tuple(broken))


def _planned(checkpoint: Checkpoint, model: Model, recorded: RecordedPlan) -> Plan:
    try:
        return make_plan(checkpoint, model, recorded.recipe, layers=recorded.layers, kept=recorded.kept)
    except UsageError as error:
        what = f"not the source of this output: {error.what}"
        raise UsageError(what, where=error.where, fix="pass the source folder of this output") from None


def _rebuild_plan(source: Path, recorded: RecordedPlan | None) -> Plan | None:
    """Rebuild the plan of the run; raise UsageError if the source is not the one of the run."""
    checkpoint = open_checkpoint(source)
    model = describe(checkpoint)
    if recorded is None or (recorded.recipe.prune is not None and recorded.kept is None):
        return None
    plan = _planned(checkpoint, model, recorded)
    parts = plan.parts()
    other = [name for name in ("source config", "source tensors") if parts.get(name) != recorded.parts.get(name)]
    if other:
        what = f"not the source of this output: {' and '.join(other)} differ"
        raise UsageError(what, where=str(source), fix="pass the source folder of this output")
    return plan
