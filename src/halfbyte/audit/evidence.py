"""All that an audit looks at: an output folder, read without trust, its plan and journal, and the source if given.

`open_checkpoint` and `describe` stop at the first thing that is wrong; an audit wants all of it. So this reads the same
files with the same code, but keeps what is broken beside what is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import CheckpointError, UsageError
from halfbyte.folders import FOLDER, PLAN, REDACTED
from halfbyte.models.architecture import SUFFIXES, Architecture, Place, architecture_of
from halfbyte.models.linears import Signature, Stored, StoredLinear, identify, signature
from halfbyte.models.model import Model, describe
from halfbyte.pipeline import CHOSEN, JOURNAL, STATS_SHA256
from halfbyte.plan.manifest import Plan, make_plan
from halfbyte.plan.pruned import Kept, kept_digest
from halfbyte.prune.plan_file import PLAN as PRUNE_PLAN
from halfbyte.prune.plan_file import read_prune_plan
from halfbyte.recipe.decisions import Recipe
from halfbyte.source.checkpoint import (
    CONFIG,
    INDEX,
    MAX_HEADERS_NBYTES,
    Checkpoint,
    open_checkpoint,
    refuse_too_much,
    shard_path,
)
from halfbyte.source.foreign import read_json
from halfbyte.source.headers import TensorInfo, read_header, read_header_length
from halfbyte.write import Journal

BLOCK = "quantization_config"


@dataclass(frozen=True, slots=True)
class Made:
    """What plan.json says about how the checkpoint was made."""

    fingerprint: str
    recipe: Recipe
    layers: int | None
    parts: Mapping[str, str]
    shards: Mapping[str, int]
    kept: Kept | None = None  # the experts that stayed, where the recipe prunes
    stats_sha256: str | None = None  # of the file of statistics; None: there is none, or the run did not end
    redacted: bool = False  # local paths were taken out of the recipe, so that its hash no longer tells an edit


@dataclass(frozen=True, slots=True)
class Contents:
    """The tensors of a checkpoint in their roles, and a sentence for each that has none or lacks its scales."""

    architecture: Architecture
    linears: Mapping[str, StoredLinear]
    plain: Mapping[str, tuple[Place, TensorInfo]]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an audit knows. What could not be read is None or empty, and says why in `problems`."""

    checkpoint: Checkpoint  # what the headers of the readable shards say
    unreadable: Mapping[str, str]  # shard -> why
    index: Mapping[str, Any] | None
    contents: Contents | None
    made: Made | None
    journal: Mapping[str, Mapping[str, Any]]
    plan: Plan | None  # made again from the source
    problems: Mapping[str, str] = field(default_factory=dict[str, str])  # config.json, index, plan.json -> why

    @property
    def root(self) -> Path:
        """Return the folder."""
        return self.checkpoint.root

    @property
    def model(self) -> Contents:
        """Return the contents, for checks that are not called without them."""
        assert self.contents is not None
        return self.contents


def gather(out: Path, against: Path | None) -> Evidence:
    """Read headers, config, index, plan and journal of a folder; CheckpointError only where there is nothing to see."""
    problems: dict[str, str] = {}
    config = _read_json(out / CONFIG, problems)
    index = _read_json(out / INDEX, problems) if (out / INDEX).exists() else None
    shards = sorted(path.name for path in out.glob("*.safetensors"))
    if not shards:
        open_checkpoint(out)  # says what is wrong with this folder
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
    made = _read_plan(out / FOLDER / PLAN, problems)
    return Evidence(
        checkpoint=checkpoint,
        unreadable=unreadable,
        index=index,
        contents=_sort(checkpoint, problems),
        made=made,
        journal={str(line.get("shard")): line for line in Journal(out / FOLDER / JOURNAL).lines()},
        plan=_plan_again(against, made) if against else None,
        problems=problems,
    )


def _read_json(path: Path, problems: dict[str, str]) -> dict[str, Any] | None:
    try:
        found = read_json(path)
    except FileNotFoundError:
        problems[path.name] = f"{path.name} is missing"
    except (OSError, ValueError):
        problems[path.name] = f"{path.name} is not JSON"
    else:
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
        problems[path.name] = f"{path.name} is not a JSON object"
    return None


def _read_plan(path: Path, problems: dict[str, str]) -> Made | None:
    if not path.exists() or (raw := _read_json(path, problems)) is None:
        return None
    from halfbyte.recipe import schema as recipe_schema  # noqa: PLC0415 - pydantic: an audit trusts no file, and checks the recipe again

    try:
        recipe = recipe_schema.Recipe.model_validate(raw["recipe"]).decided()
        parts = {str(name): str(part) for name, part in raw["parts"].items()}
        shards = {str(name): int(nbytes) for name, nbytes in raw["shards"].items()}
        layers = None if parts["layers"] == "all" else int(parts["layers"])
        kept = _read_prune_plan(path.with_name(PRUNE_PLAN), raw, problems) if recipe.prune is not None else None
        same = recipe.fingerprint() == parts["recipe"]
        redacted = raw.get(REDACTED) is True and not same
        made = Made(str(raw["fingerprint"]), recipe, layers, parts, shards, kept, raw.get(STATS_SHA256), redacted)
    except (KeyError, ValueError, TypeError, AttributeError):  # pydantic's own is a ValueError
        problems[PLAN] = "plan.json is not a plan of this version of halfbyte"
        return None
    if not same and not redacted:
        problems[PLAN] = "the recipe in plan.json was changed after the plan was made"
    return made


def _read_prune_plan(path: Path, plan: Mapping[str, Any], problems: dict[str, str]) -> Kept | None:
    """Return which experts stayed; plan.json has sealed them, before the run or, chosen on the way, at its end."""
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
    """Give every tensor its role and every linear its format, and go on where one has none."""
    if not checkpoint.config:
        problems.setdefault(CONFIG, f"{CONFIG} says nothing")
        return None
    try:
        architecture = architecture_of(checkpoint.config)
    except CheckpointError as error:
        problems[CONFIG] = error.what
        return None
    modules: dict[str, dict[str, TensorInfo]] = {}
    plain: dict[str, tuple[Place, TensorInfo]] = {}
    linears: dict[str, StoredLinear] = {}
    broken: list[str] = []
    for tensor in checkpoint.tensors.values():
        module, _, suffix = tensor.name.rpartition(".")
        if suffix in SUFFIXES and architecture.linear(module):
            modules.setdefault(module, {})[suffix] = tensor
            continue
        try:
            plain[tensor.name] = (architecture.other(tensor.name), tensor)
        except CheckpointError as error:
            broken.append(error.what)
    known: dict[Signature, Stored] = {}
    for module, parts in modules.items():
        seat, found = architecture.linear(module), signature(parts)
        assert seat is not None
        try:
            stored = known.get(found) or identify(found, module)
        except CheckpointError as error:
            broken.append(f"{module}: {error.what}")
            continue
        known[found] = stored
        linears[module] = StoredLinear(module, *seat, stored.format, stored.shape, stored.group, parts)
    return Contents(architecture, linears, plain, tuple(broken))


def _planned(checkpoint: Checkpoint, model: Model, made: Made) -> Plan:
    try:
        return make_plan(checkpoint, model, made.recipe, layers=made.layers, kept=made.kept)
    except UsageError as error:
        what = f"this is not the source that the output was made from: {error.what}"
        raise UsageError(what, where=error.where, fix="give the folder that it was made from") from None


def _plan_again(source: Path, made: Made | None) -> Plan | None:
    """Make the plan of the run again; a source that is not the one it was made from is an error of the caller."""
    checkpoint = open_checkpoint(source)
    model = describe(checkpoint)
    if made is None or (made.recipe.prune is not None and made.kept is None):
        return None
    plan = _planned(checkpoint, model, made)
    parts = plan.parts()
    other = [name for name in ("source config", "source tensors") if parts.get(name) != made.parts.get(name)]
    if other:
        what = f"this is not the source that the output was made from: {' and '.join(other)} differ"
        raise UsageError(what, where=str(source), fix="give the folder that it was made from")
    return plan
