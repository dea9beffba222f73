"""Check whether the output of a plan fits on GPUs, with the launch that `halfbyte serve OUT --gpus` would choose.

The plan determines the output's config and headers, so `plan --fit` and `serve` run the same code and agree on the
engine, its settings, the parallelism and the KV cache size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.families.model import describe
from halfbyte.plan.engine_config import modelopt_file, output_config
from halfbyte.plan.manifest import Plan
from halfbyte.serve.checkpoint_facts import Served, served_checkpoint
from halfbyte.serve.facts import Wish
from halfbyte.serve.fit import Fit
from halfbyte.serve.gpus import Gpus
from halfbyte.serve.launch import DoesNotFitError, launch


@dataclass(frozen=True, slots=True)
class PlannedFit:
    """The result of `plan --fit`. `fit` is None if the launch fails for a reason other than memory."""

    gpus: Gpus
    engine: str  # title and version; empty without a launch
    fit: Fit | None
    problem: str | None
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data: the fit as in `serve --json`, with the verdict for all requested GPUs."""
        verdict = {"gpus": str(self.gpus), "fits": self.problem is None, "problem": self.problem, "advice": self.advice}
        return {**(self.fit.as_dict() if self.fit else {}), **verdict, "engine": self.engine}


def planned_fit(plan: Plan, gpus: Gpus) -> PlannedFit:
    """Return the fit of the launch that `serve` would choose; if it refuses, the error becomes the problem."""
    try:
        chosen = launch(planned_served(plan), gpus, Wish())
    except DoesNotFitError as error:
        return PlannedFit(gpus, error.engine, error.fit, error.problem, error.fix)
    except (CheckFailedError, UsageError) as error:
        return PlannedFit(gpus, "", None, error.what, error.fix)
    return PlannedFit(gpus, f"{chosen.title} {chosen.version}", chosen.fit, None)


def planned_served(plan: Plan) -> Served:
    """Return the facts of the planned output, from its planned config and headers."""
    tensors = {tensor.name: tensor for shard in plan.shards for tensor in shard.tensors}
    sizes = {shard.name: shard.nbytes for shard in plan.shards}
    output = Checkpoint(plan.checkpoint.root, output_config(plan), tensors, sizes)
    file = modelopt_file(plan)
    served = served_checkpoint(output, describe(output, uneven=True), modelopt=file["quantization"] if file else {})
    return served if plan.kept is None else replace(served, source_experts=plan.model.experts)
