"""Reject what --ray does not support, before anything is written."""

from __future__ import annotations

from halfbyte.engine.backends.local import Resources
from halfbyte.engine.backends.ray.cluster import check_address
from halfbyte.errors import UsageError
from halfbyte.plan.manifest import Plan
from halfbyte.recipe.decisions import COMPENSATED


def refuse_unsupported(plan: Plan, resources: Resources) -> None:
    """Raise for a GPU combined with --ray, an unreachable cluster, and GPTQ recipes."""
    if not resources.on_cpu:
        what = f"--ray runs on CPUs and cannot be combined with --device {resources.device}"
        raise UsageError(what, where="--ray", fix="omit --ray or --device")
    assert resources.ray is not None
    check_address(resources.ray)
    if plan.recipe.quantize is not None and plan.recipe.quantize.scales == COMPENSATED:
        what = "--ray does not support GPTQ: the Hessians of expert inputs are too large to send between nodes"
        raise UsageError(what, where="--ray", fix="omit --ray: this recipe runs on one machine")


def refuse_remote_calibration(plan: Plan) -> None:
    """Raise for calibration on a remote source, which every node would have to fetch completely."""
    if plan.checkpoint.remote is not None:
        what = "calibration with --ray would fetch the complete remote source on every node"
        fix = "calibrate on one machine first (halfbyte calibrate SRC -r RECIPE -o STATS), then use --stats STATS"
        raise UsageError(what, where="--ray", fix=fix)


def refuse_pushing() -> None:
    """Raise for --push with --ray: the driver would have to wait for the nodes' storage."""
    fix = "omit --push, and run `halfbyte publish OUT REPO` afterwards"
    raise UsageError("--push cannot be combined with --ray", where="--push", fix=fix)
