"""Separate the planned differences between two checkpoints from others: encoded, decoded, added, dropped, config.

The plan is read from the output's `halfbyte/plan.json`; either checkpoint may be the output. Without a recorded plan it
is derived, with A as the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfbyte.audit import checks
from halfbyte.audit.checks import changed_keys, flat_config
from halfbyte.audit.findings import count
from halfbyte.audit.inputs import BLOCK, Evidence, gather
from halfbyte.audit.reencode_all import sqnr_db
from halfbyte.checkpoint.output_folder import FOLDER, PLAN
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.family import SUFFIXES
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.plan.pruned import router_shape
from halfbyte.plan.rules import ENCODE, Job


@dataclass(frozen=True, slots=True)
class Origin:
    """Which of A and B is the output, and the evidence about it."""

    output: str
    evidence: Evidence

    @property
    def source(self) -> str:
        """Return the name of the source."""
        return "A" if self.output == "B" else "B"

    def prune_plan(self) -> PrunePlan | None:
        """Return the kept experts derived from the routers; None if all were kept or a plan is recorded."""
        if self.evidence.derived is None or (plan := self.evidence.derived.plan).kept is None:
            return None
        layers = {layer: LayerChoice(experts) for layer, experts in plan.kept.items()}
        router = router_shape(plan.model, plan.checkpoint.config)
        uneven = len({len(experts) for experts in plan.kept.values()}) > 1
        return PrunePlan(router=router, layers=layers, rule=None, non_uniform=uneven)


def origin(a: Path, b: Path) -> Origin | None:
    """Return which checkpoint is the output of the other; None if no plan is recorded or can be derived."""
    for name, output, source in (("B", b, a), ("A", a, b)):
        if (output / FOLDER / PLAN).is_file() and (evidence := _evidence(output, source, recorded=True)) is not None:
            return Origin(name, evidence)
    evidence = _evidence(b, a, recorded=False)
    return None if evidence is None else Origin("B", evidence)


def _evidence(output: Path, source: Path, *, recorded: bool) -> Evidence | None:
    try:
        evidence = gather(output, source, recorded=recorded)
    except (UsageError, CheckpointError):  # another source, or one that cannot be planned
        return None
    return evidence if evidence.plan is not None and evidence.contents is not None else None


@dataclass(slots=True)
class RoleLoss:
    """Quantization error of the linears of one role."""

    linears: int = 0
    signal: float = 0.0
    error: float = 0.0
    worst: str = ""
    worst_db: float = float("inf")

    @property
    def db(self) -> float:
        """Return the SQNR of all linears in dB."""
        return sqnr_db(self.signal, self.error)

    def add(self, name: str, signal: float, error: float) -> None:
        """Add a linear."""
        self.linears, self.signal, self.error = self.linears + 1, self.signal + signal, self.error + error
        if (db := sqnr_db(signal, error)) < self.worst_db:
            self.worst, self.worst_db = name, db


@dataclass(frozen=True, slots=True)
class Change:
    """A linear or tensor that differs, with the sums of squares of the source's values and of the difference."""

    name: str
    description: str
    signal: float | None
    error: float | None


@dataclass(slots=True)
class Explained:
    """The planned and the unexplained differences."""

    output: str
    plan: str
    losses: dict[str, RoleLoss] = field(default_factory=dict[str, RoleLoss])
    added: list[str] = field(default_factory=list[str])
    dropped: list[str] = field(default_factory=list[str])
    config: list[str] = field(default_factory=list[str])
    unexplained: list[str] = field(default_factory=list[str])

    def lines(self, shown: int) -> list[tuple[str, str]]:
        """Return the lines to print below the counts."""
        lines = [("plan", self.plan)]
        for role, loss in self.losses.items():
            text = f"{role.replace('_', ' ')}: {count(loss.linears, 'linear')}, SQNR {loss.db:.1f} dB"
            lines.append(("quantized", f"{text}, worst {loss.worst_db:.1f} dB ({loss.worst})"))
        for label, names in (("added", self.added), ("dropped", self.dropped), ("config", self.config)):
            if names:
                rest = f", and {len(names) - shown:,} more" if len(names) > shown else ""
                lines.append((label, f"{len(names):,} by the plan: {', '.join(names[:shown])}{rest}"))
        lines.append(("not explained", f"{len(self.unexplained):,}"))
        return lines + [("", text) for text in self.unexplained[:shown]]

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for --json."""
        losses = {
            role: {"linears": loss.linears, "sqnr_db": loss.db, "worst": loss.worst, "worst_sqnr_db": loss.worst_db}
            for role, loss in self.losses.items()
        }
        return {
            "output": self.output,
            "plan": self.plan,
            "quantized": losses,
            "added": self.added,
            "dropped": self.dropped,
            "config": self.config,
            "not_explained": self.unexplained,
        }


def explain(
    provenance: Origin, different: Iterable[Change], only_source: Sequence[str], only_output: Sequence[str]
) -> Explained:
    """Sort differences into planned and unexplained; names are modules of linears and names of other tensors."""
    evidence = provenance.evidence
    assert evidence.plan is not None
    jobs = evidence.plan.jobs
    encoded = {linear.module: job for job in jobs if job.action == ENCODE for linear in job.linears}
    planned = {spec.name for job in jobs for spec in job.outputs}
    calculated = {spec.name for job in jobs if job.action == ENCODE for spec in job.outputs}
    modules = {name.rpartition(".")[0] for name in planned if name.rpartition(".")[2] in SUFFIXES}
    explained = Explained(provenance.output, _sentence(provenance))
    for change in different:
        if change.name in encoded:
            _add_loss(explained, change, encoded[change.name], evidence)
        elif change.name in calculated:
            explained.added.append(change.name)  # an input scale that was measured again
        else:
            explained.unexplained.append(f"{change.description}; the plan keeps it")
    for name in only_output:
        if name in calculated:
            explained.added.append(name)
        else:
            explained.unexplained.append(f"{name} is only in {provenance.output}, and not in the plan")
    for name in only_source:
        if name in planned or name in modules:
            explained.unexplained.append(f"{name} is missing in {provenance.output}")
        else:
            explained.dropped.append(name)
    _explain_config(explained, evidence)
    return explained


def _sentence(provenance: Origin) -> str:
    evidence = provenance.evidence
    if evidence.derived is not None:
        return f"derived, {provenance.output} from {provenance.source}: {evidence.derived.sentence()}"
    assert evidence.recorded is not None
    return f"recorded in {provenance.output}: recipe {evidence.recorded.recipe.name}"


def _add_loss(explained: Explained, change: Change, job: Job, evidence: Evidence) -> None:
    assert evidence.plan is not None
    assert evidence.plan.recipe.quantize is not None
    target = evidence.plan.recipe.quantize.format
    after = evidence.model.linears.get(change.name)
    if after is None or after.format != target:
        explained.unexplained.append(f"{change.name} is {after.format if after else 'broken'}, planned {target}")
        return
    floor = FORMATS[target].element.floor_db
    signal, error = change.signal, change.error
    db = sqnr_db(signal, error) if signal is not None and error is not None else float("-inf")
    if db < floor:
        explained.unexplained.append(f"{change.name}: SQNR {db:.1f} dB, but {target} has at least {floor:.0f} dB")
        return
    assert signal is not None
    assert error is not None
    explained.losses.setdefault(job.role, RoleLoss()).add(change.name, signal, error)


def _explain_config(explained: Explained, evidence: Evidence) -> None:
    plan = evidence.plan
    assert plan is not None
    wrong = changed_keys(evidence)
    if plan.recipe.quantize is not None or plan.decodes:  # a kept block is the source's, right or wrong
        findings = [*checks.config(evidence), *checks.ignore(evidence)]
        wrong = [example for finding in findings if finding.level == "bad" for example in finding.examples]
    explained.unexplained += [f"config.json: {example}" for example in wrong]
    before, after = flat_config(plan.checkpoint.config), flat_config(evidence.checkpoint.config)
    keys = [key for key in before.keys() | after.keys() if before.get(key, _ABSENT) != after.get(key, _ABSENT)]
    not_planned = {example.partition(" is ")[0] for example in wrong}
    explained.config += sorted({_block_or_key(key) for key in keys if key not in not_planned})


def _block_or_key(key: str) -> str:
    """Return the key, shortened to the quantization block for keys inside it."""
    head, block, _ = key.partition(BLOCK)
    return f"{head}{block}" if block else key


_ABSENT = object()
