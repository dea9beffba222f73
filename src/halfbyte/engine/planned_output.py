"""The output of a recipe without its folder: a checkpoint whose tensors are encoded from the source when they are read.

`compare -r` runs it beside the source, because two checkpoints of 595 GB rarely fit on a disk.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import LayerStats
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.identity import identity
from halfbyte.checkpoint.reader import CachingReader, Reader
from halfbyte.engine.activation_scales import calibrated_names, fixed_scales
from halfbyte.engine.jobs import JobInputs, apply, as_bytes, inputs_from_stats
from halfbyte.engine.pipeline import given_statistics, plan, with_experts
from halfbyte.errors import UsageError
from halfbyte.plan.manifest import Plan
from halfbyte.plan.quantization_config import output_config
from halfbyte.plan.rules import KEEP, Job
from halfbyte.recipe.decisions import Recipe

_JOBS_PER_THREAD = 2  # encoded jobs that a thread keeps: linears of one job are read one after another
_CALIBRATE = "pass --stats STATS, created by halfbyte calibrate SRC -r RECIPE -o STATS"


@dataclass(frozen=True, slots=True, eq=False)
class PlannedOutput:
    """The checkpoint that a plan describes, and the statistics for its input scales and KV-cache scales."""

    plan: Plan
    checkpoint: Checkpoint  # config and headers of the output; `root` is the source's
    stats: Mapping[int, LayerStats]  # by layer; empty if no scale is needed


def planned_output(
    source: Path, recipe: Recipe, stats: Path | None = None, *, input_scales: bool = False, kv_scales: bool = False
) -> PlannedOutput:
    """Return the output of `quantize` with this recipe. Reads headers only.

    Raise UsageError if the weights, or with `input_scales` or `kv_scales` these scales, depend on calibration data and
    there are no statistics.
    """
    _refuse_unmeasured(recipe, stats, input_scales=input_scales, kv_scales=kv_scales)
    run_plan = plan(source, recipe)
    if stats is None:
        return PlannedOutput(run_plan, output_checkpoint(run_plan), {})
    weights = identity(run_plan.checkpoint)
    statistics = given_statistics(run_plan, weights, stats)
    run_plan, _ = with_experts(run_plan, statistics, weights, None)
    with CachingReader(run_plan.checkpoint, {}) as unused:  # statistics of a file read no weights
        layers = dict(statistics.layers(unused, None, lambda _: None, ()))
    return PlannedOutput(run_plan, output_checkpoint(run_plan), layers)


def _refuse_unmeasured(recipe: Recipe, stats: Path | None, *, input_scales: bool, kv_scales: bool) -> None:
    quantize = recipe.quantize
    if quantize is not None and quantize.needs_hessians:
        what = f"recipe '{recipe.name}' needs the Hessians of expert inputs, which only a run of `quantize` measures"
        fix = "write the output: halfbyte quantize SRC OUT -r RECIPE, then halfbyte compare SRC OUT"
        raise UsageError(what, where="-r", fix=fix)
    if stats is not None:
        return
    if recipe.prune is not None:
        what = f"recipe '{recipe.name}' selects experts by statistics"
        raise UsageError(what, where="--stats", fix=_CALIBRATE)
    if input_scales and quantize is not None and quantize.activations == "calibrated":
        what = f"recipe '{recipe.name}' calibrates the input scales that --activations as-served needs"
        raise UsageError(what, where="--stats", fix=f"{_CALIBRATE}, or use --activations off")
    if kv_scales and quantize is not None and quantize.kv_cache == "fp8":
        what = f"recipe '{recipe.name}' calibrates the KV-cache scales that --kv fp8-scaled needs"
        raise UsageError(what, where="--stats", fix=f"{_CALIBRATE}, or use --kv fp8")


def output_checkpoint(run_plan: Plan) -> Checkpoint:
    """Return the config and the headers that a run of the plan writes."""
    config: dict[str, Any] = json.loads(json.dumps(output_config(run_plan)))
    tensors = {tensor.name: tensor for shard in run_plan.shards for tensor in shard.tensors}
    return Checkpoint(
        run_plan.checkpoint.root, config, tensors, {shard.name: shard.nbytes for shard in run_plan.shards}
    )


class PlannedReader(Reader):
    """Thread-safe reader of a planned output; `source` reads the source.

    A thread keeps the output of its last jobs, so that peak memory does not depend on the size of a layer.
    """

    def __init__(self, output: PlannedOutput, source: Reader) -> None:
        super().__init__(output.checkpoint, {})
        self._source, self._quantize = source, output.plan.recipe.quantize
        self._jobs = {spec.name: job for job in output.plan.jobs for spec in job.outputs}
        self._inputs = {layer: inputs_from_stats(stats, self._quantize) for layer, stats in output.stats.items()}
        self._recent = threading.local()

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Return the bytes that `quantize` writes for a tensor."""
        job = self._jobs[info.name]
        if job.action == KEEP:
            spans = dict(job.copies())[info.name]
            parts = [self._source.raw(span) for span in spans]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        scale = self._scales(job).get(info.name)
        data = np.frombuffer(as_bytes(self._outputs(job)[info.name] if scale is None else scale), np.uint8)
        assert len(data) == info.nbytes, info.name
        return data

    def read_into(self, info: TensorInfo, memory: NDArray[np.uint8]) -> None:
        """Copy the bytes of a whole tensor into an array of its size."""
        memory[:] = self.raw(info)

    def _scales(self, job: Job) -> Mapping[str, NDArray[Any]]:
        """Return the scales of activations, which need no weights."""
        if self._quantize is None or job.action == KEEP:
            return {}
        return {**fixed_scales(job, self._quantize), **self._inputs_of(job).tensors}

    def _inputs_of(self, job: Job) -> JobInputs:
        if job.layer is not None and job.layer in self._inputs:
            return self._inputs[job.layer](job)
        return JobInputs()

    def _outputs(self, job: Job) -> Mapping[str, NDArray[Any]]:
        recent: OrderedDict[str, Mapping[str, NDArray[Any]]] = self._recent.__dict__.setdefault("jobs", OrderedDict())
        if job.name not in recent:
            recent[job.name] = apply(job, self._source, self._quantize, self._with_placeholders(job)).tensors
            if len(recent) > _JOBS_PER_THREAD:
                recent.popitem(last=False)
        return recent[job.name]

    def _with_placeholders(self, job: Job) -> JobInputs:
        """Return the inputs of a job. Without statistics, its scales of activations are NaN, and are never used."""
        inputs = self._inputs_of(job)
        if inputs.tensors or self._quantize is None:
            return inputs
        names = calibrated_names(job, self._quantize)
        return JobInputs(dict.fromkeys(names, np.full((), np.nan, np.float32)), inputs.encode)
