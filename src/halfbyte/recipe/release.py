"""Schema of a recipe's `release` block: the stages to run on the checkpoint and the gates that must pass.

The block does not affect output bytes, so it is not part of the recipe's fingerprint or plan.json and can be changed
after quantization. A stage without a block is skipped. The keys of a stage are options of its command, declared in
`halfbyte.options`; omitted ones have the command's defaults. Paths are relative to the recipe file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, create_model

from halfbyte.options.declare import Option
from halfbyte.options.serve import URL_COMMANDS
from halfbyte.options.stages import STAGE_OPTIONS
from halfbyte.recipe import decisions
from halfbyte.recipe import schema as recipe_schema
from halfbyte.recipe.errors import Problem
from halfbyte.recipe.schema import Part

_NEEDED_BY_GATES = {"audit": "audit", "loops": "loops", "compare": "compare", "probe": "probe",
                    "probe_coverage": "probe", "eval": "eval", "bench": "bench"}  # fmt: skip
Block = TypeVar("Block", bound=Part)


def _with_options(stage: str) -> Callable[[type[Block]], type[Block]]:
    """Add the options of a stage's command to its block, with the same names, types, bounds and allowed values."""

    def add(block: type[Block]) -> type[Block]:
        row = STAGE_OPTIONS[stage]
        keys: dict[str, Any] = {name: _key(option, name in row.required) for name, option in row.keys().items()}
        return create_model(block.__name__, __base__=block, __doc__=block.__doc__, __module__=__name__, **keys)

    return add


def _key(option: Option, required: bool) -> tuple[Any, Any]:
    """Return the type and Field of an option. An omitted key means the default of the command."""
    declared = option.declaration
    several = option.multiple or declared.items is not None
    item: Any = declared.items or (str if option.type is Path else option.type)
    limits: dict[str, Any] = {"ge": declared.least, "gt": declared.above, "le": declared.most, "lt": declared.below,
                              "pattern": declared.pattern}  # fmt: skip
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    if several:
        limits["strict"] = False
    if (several and required) or (item is str and not several and declared.pattern is None):
        limits["min_length"] = 1
    kind = tuple[item, ...] if several else item
    field = Field(... if required else None, description=declared.recipe, **limits)
    return kind if required else kind | None, field


@_with_options("audit")
class AuditStage(Part):
    """`halfbyte audit OUT --against SRC`."""


@_with_options("loops")
class LoopsStage(Part):
    """`halfbyte loops OUT --against SRC`, for models that fit into memory when decoded."""


@_with_options("compare")
class CompareStage(Part):
    """`halfbyte compare SRC OUT`."""


@_with_options("scripts")
class ScriptsStage(Part):
    """`halfbyte serve OUT --gpus NxGPU --write OUT/halfbyte/serve`: launch scripts for the published checkpoint."""


@_with_options("serve")
class ServeStage(Part):
    """`halfbyte serve OUT --run`: the locally installed engine, for the stages that send requests."""

    def _contradictions(self) -> Iterator[Problem]:
        keys = self.model_dump()
        if keys["activations"] is not None and not keys["emulate"]:
            yield Problem("'activations' requires 'emulate'", ("activations",), "remove it, or set emulate to true")
        for index, setting in enumerate(keys["settings"] or ()):
            if not setting.partition("=")[1]:
                fix = "write NAME=VALUE, as in max-num-seqs=4"
                yield Problem(f"'{setting}' is not a NAME=VALUE pair", ("settings", index), fix)


@_with_options("probe")
class ProbeStage(Part):
    """`halfbyte probe URL`."""


@_with_options("eval")
class EvalStage(Part):
    """`halfbyte eval URL`, alone or against the source."""

    against: Literal["source", "nothing"] = Field(
        description="source (served first and evaluated on the same items) or nothing (scores without a comparison)"
    )
    flip_rate: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="the expected share of answers that differ from the source's, between 0 and 1, for the preflight",
    )


@_with_options("bench")
class BenchStage(Part):
    """`halfbyte bench URL`."""


@_with_options("card")
class CardStage(Part):
    """`halfbyte card OUT`: facts that the output folder does not contain."""


@_with_options("publish")
class PublishStage(Part):
    """`halfbyte publish OUT REPO`, after ACCEPT."""


class CompareGate(Part):
    """Limits on the `compare` results over all tokens."""

    max_kl: float | None = Field(None, gt=0, description="the largest accepted mean KL divergence in nats, above 0")
    min_top1: float | None = Field(
        None, gt=0, le=1, description="the smallest accepted top-1 agreement, above 0 and up to 1"
    )

    def _contradictions(self) -> Iterator[Problem]:
        if self.max_kl is None and self.min_top1 is None:
            yield Problem("this gate has no limits", (), "add 'max_kl' or 'min_top1'")


class LoopsGate(Part):
    """Limit on the share of generated texts that loop."""

    max_rate: float = Field(ge=0, le=1, description="the largest accepted share of looping texts, from 0 to 1")


class ProbeGate(Part):
    """The probe groups that a release depends on."""

    groups: tuple[str, ...] = Field(
        min_length=1, strict=False, description="the list of probe groups that must run; see halfbyte probe --list"
    )


class Gates(Part):
    """Conditions for the verdict ACCEPT, evaluated in release/gate.py."""

    audit: Literal["passed"] | None = Field(None, description="passed: no audit check failed")
    loops: LoopsGate | None = Field(None, description="the block with the largest share of looping texts")
    compare: CompareGate | None = Field(None, description="the block with limits for KL and top-1 agreement")
    probe: Literal["passed"] | ProbeGate | None = Field(
        None, description="passed: every probe gate ran and passed; or a block with the groups that must run"
    )
    probe_coverage: float | None = Field(
        None, gt=0, le=1, description="the smallest accepted share of applicable probes that ran, above 0 and up to 1"
    )
    eval: Literal["accept", "no_regression"] | None = Field(
        None, description="accept (non-inferior within the margin) or no_regression (no significant loss)"
    )
    bench: Literal["no_failed_requests"] | None = Field(None, description="no_failed_requests: every request succeeded")

    def _contradictions(self) -> Iterator[Problem]:
        if not self.model_dump(exclude_none=True):
            yield Problem("no gates declared", (), "add one, such as 'audit': passed")


class Release(Part):
    """Stages in execution order, the gates, and the documents written from the evidence."""

    audit: AuditStage | None = Field(None, description="the audit's block; {} for the command's defaults")
    loops: LoopsStage | None = Field(None, description="the loop test's block, for small models")
    compare: CompareStage | None = Field(None, description="the block for the comparison with the source on text files")
    scripts: ScriptsStage | None = Field(None, description="the block for the launch scripts")
    source: ServeStage | None = Field(None, description="the block for serving the source; default: same as 'serve'")
    serve: ServeStage | None = Field(None, description="the block for serving the output on this machine")
    probe: ProbeStage | None = Field(None, description="the block for the probes")
    eval: EvalStage | None = Field(None, description="the block for the evaluation")
    bench: BenchStage | None = Field(None, description="the block for the load test")
    gates: Gates = Field(description="the block with the conditions for ACCEPT")
    provenance: bool | None = Field(None, description="true to write provenance.json")
    card: bool | CardStage | None = Field(
        None, description="true to write the model card, README.md; or a block with its name, repo and other facts"
    )
    report: bool | None = Field(None, description="true to write the report, halfbyte/report.html")
    publish: PublishStage | None = Field(None, description="the block that names the repository on the Hub")

    def _contradictions(self) -> Iterator[Problem]:
        for gate, kind in _NEEDED_BY_GATES.items():
            if getattr(self.gates, gate) is not None and getattr(self, kind) is None:
                fix = f"add 'release.{kind}': {{}} or with its options, or remove the gate"
                yield Problem(f"the gate '{gate}' has no stage that measures it", ("gates", gate), fix)
        if self.eval is not None and self.eval.against == "nothing" and self.gates.eval is not None:
            fix = "set eval.against to source, or remove the gate"
            yield Problem("the gate 'eval' requires a comparison", ("gates", "eval"), fix)
        if self.source is not None and (self.eval is None or self.eval.against == "nothing"):
            yield Problem("no stage uses 'source'", ("source",), "remove it, or set eval.against to source")
        named = self.card.model_dump()["repo"] if isinstance(self.card, CardStage) else None
        published = self.publish.model_dump()["repo"] if self.publish else None
        if named and published and named != published:
            fix = f"set card.repo to {published}, or leave it out"
            yield Problem("the card and 'publish' name different repositories", ("card", "repo"), fix)
        if self.serve is not None and not any(getattr(self, kind) is not None for kind in URL_COMMANDS):
            yield Problem("no stage uses 'serve'", ("serve",), "remove it, or add 'probe', 'eval' or 'bench'")


class Recipe(recipe_schema.Recipe):
    """The recipe file: the keys that determine output bytes, plus the `release` block."""

    release: Release | None = Field(None, description="the block with the stages and gates of a release")

    def decided(self) -> decisions.Recipe:
        """Return the recipe as plain values, without the `release` block."""
        return decisions.Recipe.of(self.model_dump(exclude={"release"}))


def with_paths(block: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a release block with its relative paths resolved against the recipe file's folder."""
    resolved: dict[str, Any] = dict(block)
    if compare := resolved.get("compare"):
        resolved["compare"] = {**compare, "data": [_resolve(folder, pair) for pair in compare["data"]]}
    if (evaluation := resolved.get("eval")) and evaluation.get("data_dir"):
        resolved["eval"] = {**evaluation, "data_dir": os.path.normpath(folder / evaluation["data_dir"])}
    return resolved


def _resolve(folder: Path, pair: str) -> str:
    domain, equals, file = pair.partition("=")
    return f"{domain}={os.path.normpath(folder / file)}" if equals else pair
