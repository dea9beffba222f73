"""Schema of a recipe's `release` block: the stages to run on the checkpoint and the gates that must pass.

The block does not affect output bytes, so it is not part of the recipe's fingerprint or plan.json and can be changed
after quantization. A stage without a block is skipped. Omitted options default to those of the stage's command. Paths
are relative to the recipe file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from halfbyte.recipe import decisions
from halfbyte.recipe import schema as recipe_schema
from halfbyte.recipe.errors import Problem
from halfbyte.recipe.schema import Part

_NEEDED_BY_GATES = {"audit": "audit", "loops": "loops", "compare": "compare", "probe": "probe",
                    "probe_coverage": "probe", "eval": "eval", "bench": "bench"}  # fmt: skip
_NEEDS_SERVER = ("probe", "eval", "bench")


class AuditStage(Part):
    """`halfbyte audit OUT --against SRC`."""

    sample: int | None = Field(None, ge=0, description="how many groups of linears per layer to re-encode")
    engine: Literal["vllm"] | None = Field(None, description="vllm, to also map every name with the installed vLLM")


class LoopsStage(Part):
    """`halfbyte loops OUT --against SRC`, for models that fit into memory when decoded."""

    prompts: int | None = Field(None, ge=1, description="how many of the 64 prompts to use, at least 1")
    tokens: int | None = Field(None, ge=1, description="the maximum number of tokens to generate, at least 1")


class CompareStage(Part):
    """`halfbyte compare SRC OUT`."""

    data: tuple[str, ...] = Field(
        strict=False, min_length=1, description="the list of text files, each DOMAIN=FILE or DOMAIN=FILE:COLUMNS"
    )
    samples: int | None = Field(None, ge=1, description="the number of rows, at least 1")
    length: int | None = Field(None, ge=2, description="the number of tokens per row, at least 2")
    activations: Literal["off", "as-served"] | None = Field(
        None, description="off, or as-served to quantize activations as engines do"
    )
    kv: Literal["off", "fp8", "fp8-scaled"] | None = Field(None, description="off, fp8 or fp8-scaled for the KV cache")


class ScriptsStage(Part):
    """`halfbyte serve OUT --gpus NxGPU --write OUT/halfbyte/serve`: launch scripts for the published checkpoint."""

    gpus: str = Field(min_length=1, description="the GPUs to serve on, as in 8xB200")
    engine: str | None = Field(None, min_length=1, description="the engine's name; default: every supported engine")
    context: int | None = Field(None, ge=1, description="the maximum tokens of prompt and answer together, at least 1")


class ServeStage(Part):
    """`halfbyte serve OUT --run`: the locally installed engine, for the stages that send requests."""

    gpus: str | None = Field(None, min_length=1, description="the GPUs of this machine, as in 8xB200; omit for CPU")
    engine: str | None = Field(None, min_length=1, description="the engine's name, such as vllm")
    emulate: bool | None = Field(None, description="true to expand 4-bit weights to BF16, which runs on any machine")
    activations: Literal["on", "off"] | None = Field(None, description="on or off: with emulate, also 4-bit inputs")
    context: int | None = Field(None, ge=1, description="the maximum tokens of prompt and answer together, at least 1")
    settings: tuple[str, ...] | None = Field(
        None,
        strict=False,
        description="the list of engine settings, each NAME=VALUE, or env.NAME=VALUE",
    )

    def _contradictions(self) -> Iterator[Problem]:
        if self.activations is not None and not self.emulate:
            yield Problem("'activations' requires 'emulate'", ("activations",), "remove it, or set emulate to true")
        for index, setting in enumerate(self.settings or ()):
            if not setting.partition("=")[1]:
                fix = "write NAME=VALUE, as in max-num-seqs=4"
                yield Problem(f"'{setting}' is not a NAME=VALUE pair", ("settings", index), fix)


class ProbeStage(Part):
    """`halfbyte probe URL`."""

    profile: str | None = Field(None, min_length=1, description="the probe profile: kimi or mini")
    budget: str | None = Field(
        None,
        pattern=r"^[0-9]+(\.[0-9]+)?[smh]$",
        description="the time budget, such as 90s, 5m or 1h",
    )
    only: tuple[str, ...] | None = Field(None, strict=False, description="the list of probes or groups to run")
    skip: tuple[str, ...] | None = Field(None, strict=False, description="the list of probes or groups to skip")


class EvalStage(Part):
    """`halfbyte eval URL`, alone or against the source."""

    suite: str = Field(min_length=1, description="the name of the suite, such as kimi-card")
    against: Literal["source", "nothing"] = Field(
        description="source (served first and evaluated on the same items) or nothing (scores without a comparison)"
    )
    limit: int | None = Field(None, ge=1, description="the number of items per task, at least 1")
    margin: float | None = Field(None, gt=0, lt=1, description="the non-inferiority margin, between 0 and 1")
    data_dir: str | None = Field(None, min_length=1, description="the folder with the datasets, instead of the Hub")


class BenchStage(Part):
    """`halfbyte bench URL`."""

    shape: tuple[str, ...] | None = Field(None, strict=False, description="the list of prompt:answer lengths, as 1k:1k")
    concurrency: tuple[int, ...] | None = Field(None, strict=False, description="the list of concurrency levels")
    blocks: int | None = Field(None, ge=1, description="the blocks per measuring point; at least 6 for a claim")
    trust_remote_code: bool | None = Field(
        None, description="true to run the tokenizer's own Python code, which Kimi's tokenizer requires"
    )


class CardStage(Part):
    """`halfbyte card OUT`: facts that the output folder does not contain."""

    name: str | None = Field(None, min_length=1, description="the title; default: the source's name and the format")
    repo: str | None = Field(
        None, pattern=r"^[^/\s]+/[^/\s]+$", description="the repository on the Hub; default: that of 'publish'"
    )
    base_model: str | None = Field(None, min_length=1, description="the source's name on the Hub")
    license: str | None = Field(None, min_length=1, description="the license, if the source's card does not state one")
    quantized_by: str | None = Field(None, min_length=1, description="the person or organization that ran halfbyte")


class PublishStage(Part):
    """`halfbyte publish OUT REPO`, after ACCEPT."""

    repo: str = Field(pattern=r"^[^/\s]+/[^/\s]+$", description="the repository on the Hub, as organization/name")
    private: bool | None = Field(None, description="true for a private repository")


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


class Gates(Part):
    """Conditions for the verdict ACCEPT, evaluated in release/gate.py."""

    audit: Literal["passed"] | None = Field(None, description="passed: no audit check failed")
    loops: LoopsGate | None = Field(None, description="the block with the largest share of looping texts")
    compare: CompareGate | None = Field(None, description="the block with limits for KL and top-1 agreement")
    probe: Literal["passed"] | None = Field(None, description="passed: every probe gate that ran passed")
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
        card, published = self.card, self.publish
        if isinstance(card, CardStage) and card.repo and published and card.repo != published.repo:
            fix = f"set card.repo to {published.repo}, or leave it out"
            yield Problem("the card and 'publish' name different repositories", ("card", "repo"), fix)
        if self.serve is not None and not any(getattr(self, kind) is not None for kind in _NEEDS_SERVER):
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
