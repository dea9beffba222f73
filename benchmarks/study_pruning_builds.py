"""The builds of the study of pruning: which experts stay, chosen by halfbyte's own `prune.build_plan` from statistics.

"task" is calibrated on programs alone; "mixed" on all domains, all tokens alike; "even" on all domains, each with the
same weight; "max_min" looks for the set whose worst domain is covered best.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training.shape import MINI

from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.calibrate.store import read_stats
from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import PrunePlan
from halfbyte.plan.pruned import RouterShape
from halfbyte.prune.build_plan import choose, coverage_of
from halfbyte.prune.saliency import layer_scores
from halfbyte.prune.selection import restore
from halfbyte.recipe.decisions import Prune

Kept = Mapping[int, tuple[int, ...]]

KEEP = {100: 32, 75: 24, 62: 20, 50: 16, 37: 12}
ORDER = (50, 62, 75, 37)  # a run that is cut off has the most telling ones
METHODS = ("reap", "reap_softmax", "ean", "frequency")
PUBLIC = "reap_public"  # on mixed text only
EVEN = ("reap", "reap_softmax")  # also on mixed text in which every domain weighs the same, however long its texts are
TASK = "programs"
RANDOM_SEEDS = (0, 1, 2)
RESTORED = 4  # experts a layer: from 50 % to 62 %


@dataclass(frozen=True, slots=True)
class Build:
    """A set of kept experts and where it comes from; `tune` asks for router tuning after pruning."""

    keep: int  # percent
    method: str
    calibration: str
    kept: Kept
    coverage: float  # of the worst domain, mean over layers
    tune: bool = False

    @property
    def name(self) -> str:
        """Return its name in the tables."""
        return f"{self.method} {self.calibration} {self.keep} %".replace("  ", " ") + (" tuned" if self.tune else "")


class Statistics:
    """The calibration, and the choices that follow from it."""

    def __init__(self, path: Path) -> None:
        self.about, self.layers = read_stats(path)
        self.domains: list[str] = list(self.about["domains"])
        self.moe = [layer for layer, found in self.layers.items() if found.experts is not None]
        self.router = RouterShape(MINI.experts, MINI.active_experts)

    def plan(self, keep: int, method: str, calibration: str) -> PrunePlan:
        """Choose by halfbyte's own rules."""
        layers, domains = self.layers, self.domains
        if calibration == "task":
            layers, domains = {number: _only(found, domains.index(TASK)) for number, found in layers.items()}, [TASK]
        select: Any = "max_min" if calibration == "max_min" else "mean"
        tokens = self.about["domains"]
        blend = {name: 1 / tokens[name] for name in domains} if calibration == "even" else None
        rule = Prune(method=method, statistics="file", keep=keep, select=select, blend=blend)  # type: ignore[arg-type]
        return choose(layers, domains, rule, self.router, layers_expected=self.moe)

    def knows_public(self) -> bool:
        """Whether the public REAP code's own choice can be made: only some calibrations measure its sums."""
        try:
            self.plan(KEEP[50], PUBLIC, "mixed")
        except UsageError as error:
            print(f"{PUBLIC} is left out: {error}", flush=True)
            return False
        return True

    def build(self, percent: int, method: str, calibration: str) -> Build:
        """Return one cell of the study."""
        plan = self.plan(KEEP[percent], method, calibration)
        return Build(percent, method, calibration, plan.kept(), self.coverage(plan.kept()))

    def coverage(self, kept: Kept) -> float:
        """Return how much of the worst domain kept experts cover, by REAP's scores on the mixed text."""
        rule = Prune(method="reap", statistics="file", keep=KEEP[100])
        scores = {layer: layer_scores(layer, self.layers[layer], self.domains, rule, self.router) for layer in self.moe}
        found = coverage_of(kept, scores, self.domains, self.router)["domains"]
        return min(domain["mean"] for domain in found.values() if domain)

    def random(self, percent: int, seed: int) -> Build:
        """Return experts drawn without looking."""
        rng = random.Random(seed)
        kept = {layer: tuple(sorted(rng.sample(range(MINI.experts), KEEP[percent]))) for layer in self.moe}
        return Build(percent, "random", f"seed {seed}", kept, self.coverage(kept))

    def restored(self, method: str) -> Build:
        """Return the task's half of the experts, and the best dropped ones of the mixed text beside it."""
        half, mixed = self.plan(KEEP[50], method, "task"), self.plan(KEEP[50], method, "mixed")
        judged = {number: replace(half.layers[number], scores=mixed.layers[number].scores) for number in half.layers}
        plan = restore(replace(half, layers=judged), RESTORED)
        return Build(62, method, f"task, {RESTORED} restored by mixed", plan.kept(), self.coverage(plan.kept()))


def _only(found: LayerStats, domain: int) -> LayerStats:
    """Return the statistics of a calibration on one domain alone."""
    if found.experts is None:
        return found
    tensors = {name: array[:, [domain]] if array.ndim > 1 else array for name, array in found.experts.tensors().items()}
    return replace(found, experts=ExpertStats.of(tensors))


def builds(statistics: Statistics) -> Iterator[Build]:
    """Yield all builds, the most telling ones first."""
    public = statistics.knows_public()
    for percent in ORDER:
        for calibration in ("mixed", "task", "max_min"):
            yield from (statistics.build(percent, method, calibration) for method in METHODS)
        yield from (statistics.build(percent, method, "even") for method in EVEN)
        if public:
            yield statistics.build(percent, PUBLIC, "mixed")
        yield from (statistics.random(percent, seed) for seed in RANDOM_SEEDS)
        if percent == ORDER[0]:
            yield from repairs(statistics)


def repairs(statistics: Statistics) -> Iterator[Build]:
    """Yield the attempts to restore quality with half of the experts."""
    yield statistics.restored("reap")
    half = [statistics.build(50, "reap", "mixed"), statistics.build(50, "reap", "task")]
    for build in (*half, statistics.restored("reap"), statistics.random(50, RANDOM_SEEDS[0])):
        yield replace(build, tune=True)
