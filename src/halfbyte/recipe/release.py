"""What a recipe may say about a release: which stages are run on the checkpoint, and which gates must pass.

Nothing here decides a byte of the checkpoint, so nothing of it is in the recipe's fingerprint or in plan.json: the
block may be changed after a week of quantizing. A stage without a block is not run. Options that are left out are those
of the stage's command. Paths are relative to the recipe's file.
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
_ASKS_SERVER = ("probe", "eval", "bench")


class AuditStage(Part):
    """`halfbyte audit OUT --against SRC`."""

    sample: int | None = Field(None, ge=0, description="how many groups of linears of each layer are encoded again")
    engine: Literal["vllm"] | None = Field(None, description="vllm, to let the installed one load every name as well")


class LoopsStage(Part):
    """`halfbyte loops OUT --against SRC`: for models that fit into memory decoded."""

    prompts: int | None = Field(None, ge=1, description="how many of the 64 prompts are asked, at least 1")
    tokens: int | None = Field(None, ge=1, description="the length of the longest text in tokens, at least 1")


class CompareStage(Part):
    """`halfbyte compare SRC OUT`."""

    data: tuple[str, ...] = Field(
        strict=False, min_length=1, description="the list of texts to run on, each DOMAIN=FILE or DOMAIN=FILE:COLUMNS"
    )
    samples: int | None = Field(None, ge=1, description="the number of rows, at least 1")
    length: int | None = Field(None, ge=2, description="the number of tokens in a row, at least 2")
    activations: Literal["off", "as-served"] | None = Field(
        None, description="off, or as-served to quantize activations as engines do"
    )
    kv: Literal["off", "fp8", "fp8-scaled"] | None = Field(None, description="off, fp8 or fp8-scaled for the KV cache")


class ScriptsStage(Part):
    """`halfbyte serve OUT --gpus NxGPU --write OUT/halfbyte/serve`: launch scripts for those who get the checkpoint."""

    gpus: str = Field(min_length=1, description="what it shall be served on, as in 8xB200")
    engine: str | None = Field(None, min_length=1, description="the engine's name; without it all that can serve it")
    context: int | None = Field(None, ge=1, description="the tokens of a request and its answer, at least 1")


class ServeStage(Part):
    """`halfbyte serve OUT --run`: the engine that is installed here, for the stages that ask it."""

    gpus: str | None = Field(None, min_length=1, description="the GPUs of this machine, as in 8xB200; none for the CPU")
    engine: str | None = Field(None, min_length=1, description="the engine's name, such as vllm")
    emulate: bool | None = Field(None, description="true to expand 4-bit weights to BF16, which runs on any machine")
    activations: Literal["on", "off"] | None = Field(None, description="on or off: with emulate, also 4-bit inputs")
    context: int | None = Field(None, ge=1, description="the tokens of a request and its answer, at least 1")
    settings: tuple[str, ...] | None = Field(
        None, strict=False, description="the list of the engine's settings, each NAME=VALUE, env.NAME for a variable"
    )

    def _contradictions(self) -> Iterator[Problem]:
        if self.activations is not None and not self.emulate:
            yield Problem("'activations' means nothing without 'emulate'", ("activations",), "remove it, or emulate")
        for index, setting in enumerate(self.settings or ()):
            if not setting.partition("=")[1]:
                fix = "write NAME=VALUE, as in max-num-seqs=4"
                yield Problem(f"'{setting}' sets nothing", ("settings", index), fix)


class ProbeStage(Part):
    """`halfbyte probe URL`."""

    profile: str | None = Field(None, min_length=1, description="the name of the questions: kimi or mini")
    budget: str | None = Field(
        None,
        pattern=r"^[0-9]+(\.[0-9]+)?[smh]$",
        description="the time that the probes may take, such as 90s, 5m or 1h",
    )
    only: tuple[str, ...] | None = Field(None, strict=False, description="the list of probes or groups that are run")
    skip: tuple[str, ...] | None = Field(None, strict=False, description="the list of probes or groups left out")


class EvalStage(Part):
    """`halfbyte eval URL`, alone or against the source."""

    suite: str = Field(min_length=1, description="the name of the suite, such as kimi-card")
    against: Literal["source", "nothing"] = Field(
        description="source (it is served first and asked the same) or nothing (scores without a comparison)"
    )
    limit: int | None = Field(None, ge=1, description="the number of items of each task that are asked, at least 1")
    margin: float | None = Field(None, gt=0, lt=1, description="the largest loss that is none, in shares of 1")
    data_dir: str | None = Field(None, min_length=1, description="the folder with the data sets, instead of the Hub")


class BenchStage(Part):
    """`halfbyte bench URL`."""

    shape: tuple[str, ...] | None = Field(None, strict=False, description="the list of prompt:answer lengths, as 1k:1k")
    concurrency: tuple[int, ...] | None = Field(None, strict=False, description="the list of requests at once")
    blocks: int | None = Field(None, ge=1, description="the blocks at each point; fewer than 6 support no claim")
    trust_remote_code: bool | None = Field(
        None, description="true to let the tokenizer run its own code, as Kimi's has"
    )


class PublishStage(Part):
    """`halfbyte publish OUT REPO`, after ACCEPT."""

    repo: str = Field(pattern=r"^[^/\s]+/[^/\s]+$", description="the repository on the Hub, as organisation/name")
    private: bool | None = Field(None, description="true for a repository that only its owner sees")


class CompareGate(Part):
    """Limits for what `compare` measured on all tokens."""

    max_kl: float | None = Field(None, gt=0, description="the largest mean KL that is accepted, in nats, above 0")
    min_top1: float | None = Field(
        None, gt=0, le=1, description="the smallest share of tokens with the same likeliest next token, up to 1"
    )

    def _contradictions(self) -> Iterator[Problem]:
        if self.max_kl is None and self.min_top1 is None:
            yield Problem("this gate limits nothing", (), "add 'max_kl' or 'min_top1'")


class LoopsGate(Part):
    """The limit for texts that fall into a loop."""

    max_rate: float = Field(ge=0, le=1, description="the largest share of looping texts that is accepted, from 0 to 1")


class Gates(Part):
    """What must hold for the verdict ACCEPT; validate/gate.py judges it."""

    audit: Literal["passed"] | None = Field(None, description="passed: no check of the audit failed")
    loops: LoopsGate | None = Field(None, description="the block with the largest share of looping texts")
    compare: CompareGate | None = Field(None, description="the block with limits for KL and top-1 agreement")
    probe: Literal["passed"] | None = Field(None, description="passed: no gate of the probes failed or broke")
    probe_coverage: float | None = Field(
        None, gt=0, le=1, description="the smallest share of probes that ran, of those that can be asked, up to 1"
    )
    eval: Literal["accept", "no_regression"] | None = Field(
        None, description="accept (no loss beyond the margin, shown) or no_regression (no loss is shown)"
    )
    bench: Literal["no_failed_requests"] | None = Field(None, description="no_failed_requests: every answer came")

    def _contradictions(self) -> Iterator[Problem]:
        if not self.model_dump(exclude_none=True):
            yield Problem("no gate is declared", (), "add one, such as 'audit': passed")


class Release(Part):
    """Stages in the order of the work, the gates, and what is written from the evidence."""

    audit: AuditStage | None = Field(None, description="the block of the audit; {} for its command's own options")
    loops: LoopsStage | None = Field(None, description="the block of the loop test, for small models")
    compare: CompareStage | None = Field(None, description="the block of the comparison with the source, on texts")
    scripts: ScriptsStage | None = Field(None, description="the block that says what launch scripts are written for")
    source: ServeStage | None = Field(
        None, description="the block that says how the source is served; without it as 'serve' says"
    )
    serve: ServeStage | None = Field(None, description="the block that says how the result is served here")
    probe: ProbeStage | None = Field(None, description="the block of the probes")
    eval: EvalStage | None = Field(None, description="the block of the evaluation")
    bench: BenchStage | None = Field(None, description="the block of the load test")
    gates: Gates = Field(description="the block with what must hold for ACCEPT")
    provenance: bool | None = Field(None, description="true to write provenance.json")
    card: bool | None = Field(None, description="true to write the model card, README.md")
    report: bool | None = Field(None, description="true to write the report, halfbyte/report.html")
    publish: PublishStage | None = Field(None, description="the block that names the repository on the Hub")

    def _contradictions(self) -> Iterator[Problem]:
        for gate, kind in _NEEDED_BY_GATES.items():
            if getattr(self.gates, gate) is not None and getattr(self, kind) is None:
                fix = f"add 'release.{kind}': {{}} or with its options, or remove the gate"
                yield Problem(f"the gate '{gate}' has no stage that measures it", ("gates", gate), fix)
        if self.eval is not None and self.eval.against == "nothing" and self.gates.eval is not None:
            fix = "set eval.against to source, or remove the gate"
            yield Problem("the gate 'eval' needs something to compare with", ("gates", "eval"), fix)
        if self.source is not None and (self.eval is None or self.eval.against == "nothing"):
            yield Problem("nothing asks the source", ("source",), "remove it, or set eval.against to source")
        if self.serve is not None and not any(getattr(self, kind) is not None for kind in _ASKS_SERVER):
            yield Problem("nothing asks the server", ("serve",), "remove it, or add 'probe', 'eval' or 'bench'")


class Recipe(recipe_schema.Recipe):
    """A recipe as it is written: what decides bytes, and what a release does with them."""

    release: Release | None = Field(None, description="the block with the stages and gates of a release")

    def decided(self) -> decisions.Recipe:
        """Return what this recipe decides; the release decides nothing."""
        return decisions.Recipe.of(self.model_dump(exclude={"release"}))


def with_paths(block: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a release block whose relative paths begin at a folder, that of the recipe's file."""
    made: dict[str, Any] = dict(block)
    if made.get("compare"):
        made["compare"] = {**made["compare"], "data": [_from(folder, pair) for pair in made["compare"]["data"]]}
    if made.get("eval") and made["eval"].get("data_dir"):
        made["eval"] = {**made["eval"], "data_dir": os.path.normpath(folder / made["eval"]["data_dir"])}
    return made


def _from(folder: Path, pair: str) -> str:
    domain, equals, file = pair.partition("=")
    return f"{domain}={os.path.normpath(folder / file)}" if equals else pair
