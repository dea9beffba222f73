"""The record of `halfbyte eval`: scores of both sides, their differences and the verdict of each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from halfbyte.endpoint.identity import Identity
from halfbyte.evidence.record import MeasuredRecord
from halfbyte.statistics.results import Accuracy, OverSeeds, PairedScores, deciding

Label = Literal["ACCEPT", "REGRESSION", "INCONCLUSIVE", "ANOMALOUS", "SCORED"]
WORST_FIRST: tuple[Label, ...] = ("ANOMALOUS", "REGRESSION", "INCONCLUSIVE", "SCORED", "ACCEPT")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideScores:
    """One side of one task."""

    samples: int
    errors: int
    truncated: int
    empty: int
    by_metric: Mapping[str, Accuracy]
    by_seed: Mapping[str, float]  # of the primary metric


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One task: both sides, their difference by metric, and the verdict of the primary metric."""

    task: str
    prompt_format: str  # chat or completions, with or without a template
    shots: int | None
    label: Label
    primary: str  # metric
    candidate: SideScores
    reference: SideScores | None
    comparisons: Mapping[str, PairedScores | OverSeeds]
    worst_case_difference: float | None  # if every missing answer counted against the candidate
    anomalies: tuple[str, ...]
    notes: tuple[str, ...]

    def deciding(self, metric: str) -> PairedScores | None:
        """Return the comparison that decides a metric, if there is one."""
        comparison = self.comparisons.get(metric)
        return None if comparison is None else deciding(comparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintReply:
    """A server's answer to a fingerprint prompt."""

    text: str
    logprobs: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A server before the first item: its identity and its answers to the fingerprint prompts."""

    url: str
    model: str
    max_context: int | None
    reported: Mapping[str, str]  # its options and version, by name
    prompt_tokens: Mapping[str, tuple[int | None, ...]]  # of the parity prompts, by API
    fingerprint_replies: tuple[FingerprintReply, ...]
    checks: tuple[Mapping[str, str], ...]
    fingerprint: str | None

    @property
    def identity(self) -> Identity:
        """The server's own report of its options and version."""
        return Identity(self.url, self.model, self.max_context, self.reported)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteFacts:
    """The tasks of a run."""

    name: str
    hash: str  # SHA-256 of the suite and its task files
    data: Mapping[str, Any]  # digest of each task's data
    task_files: Mapping[str, str]  # SHA-256
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier run that serves as the reference."""

    folder: str
    started: str  # ISO 8601, UTC
    candidate: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """Seeds of the few-shot examples of each pass, and of the requests."""

    fewshot: tuple[Mapping[str, int], ...]  # lm-eval's seeds of each pass
    requests: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The command line."""

    url: str
    against: str | None
    baseline: str | None
    suite: str
    folder: str
    data_dir: str | None
    limit: int | None
    model: str | None
    concurrency: int | None
    margin: float
    timeout_s: float
    same_server: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(MeasuredRecord):
    """All tasks of a suite, with everything needed to repeat the run."""

    kind = "eval"
    file = "eval/eval.json"
    created_by = "halfbyte eval URL --against URL2 -o {out}/halfbyte/eval"
    measured = "server"

    halfbyte: str  # version
    lm_eval: str  # version
    suite: SuiteFacts
    arguments: Arguments
    concurrency: int
    sandbox: str | None  # how programs written by the model were isolated
    seeds: Seeds
    candidate: Side
    reference: Side | None
    baseline: Baseline | None  # the earlier run that --baseline names
    same_checkpoint_warning: str | None  # caveat if both sides may be the same checkpoint
    differences: tuple[str, ...]  # between the servers
    started: str  # ISO 8601, UTC
    seconds: float
    requests_sent: int
    label: Label  # the worst of all tasks
    tasks: tuple[TaskResult, ...]
