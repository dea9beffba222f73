"""What cannot be spread over machines, said before anything is written."""

from __future__ import annotations

from halfbyte.decisions import COMPENSATED
from halfbyte.errors import UsageError
from halfbyte.plan.manifest import Plan
from halfbyte.run import Means


def refuse_unspreadable(made: Plan, means: Means, *, has_statistics: bool) -> None:
    """Refuse a GPU beside a cluster, and what must be measured and written in one place."""
    if not means.on_cpu:
        what = f"--ray spreads work over the processors of many machines, and --device {means.device} is a GPU's"
        raise UsageError(what, where="--ray", fix="leave one of them out")
    if made.recipe.quantize is not None and made.recipe.quantize.scales == COMPENSATED:
        what = "compensated weights need more of the inputs than machines can send each other"
        raise UsageError(what, where="--ray", fix="leave --ray out: this recipe runs on one machine")
    if made.recipe.calibrate is not None and not has_statistics:
        what = f"recipe '{made.recipe.name}' measures on data, and that is not spread over machines yet"
        fix = "measure first: halfbyte calibrate SRC -r RECIPE -o STATS, then halfbyte quantize --stats STATS --ray"
        raise UsageError(what, where="--ray", fix=fix)
