"""What cannot be spread over machines, said before anything is written."""

from __future__ import annotations

from halfbyte.distributed.cluster import check_address
from halfbyte.errors import UsageError
from halfbyte.plan.manifest import Plan
from halfbyte.recipe.decisions import COMPENSATED
from halfbyte.run import Means


def refuse_unspreadable(made: Plan, means: Means) -> None:
    """Refuse a GPU beside a cluster, a cluster that is not there, and what one machine must measure and write."""
    if not means.on_cpu:
        what = f"--ray spreads work over the processors of many machines, and --device {means.device} is a GPU's"
        raise UsageError(what, where="--ray", fix="leave one of them out")
    assert means.ray is not None
    check_address(means.ray)
    if made.recipe.quantize is not None and made.recipe.quantize.scales == COMPENSATED:
        what = "compensated weights need more of the inputs than machines can send each other"
        raise UsageError(what, where="--ray", fix="leave --ray out: this recipe runs on one machine")


def refuse_measuring_elsewhere(made: Plan) -> None:
    """Refuse to measure on a source that every machine would have to fetch whole."""
    if made.checkpoint.remote is not None:
        what = "to measure, every machine reads every layer, and would fetch the whole source"
        fix = "measure on one first (halfbyte calibrate SRC -r RECIPE -o STATS), then give --stats STATS"
        raise UsageError(what, where="--ray", fix=fix)


def refuse_pushing() -> None:
    """Refuse to send what many machines make: the one that sends would have to wait for their storage."""
    fix = "leave --push out, and `halfbyte publish OUT REPO` at the end"
    raise UsageError("--push sends what this machine makes, and with --ray others do", where="--push", fix=fix)
