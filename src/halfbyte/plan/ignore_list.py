"""The list of unquantized modules against the roles that decide them, by the rules that engines match it with.

A recipe says both, and `--set` may change one of them alone. The audit would find that, hours later.
"""

from __future__ import annotations

from halfbyte.audit.matchers import disagreement, engine_modules, module_roles, read_block
from halfbyte.errors import RecipeError
from halfbyte.plan.engine_config import quantization_block
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ENCODE


def refuse_misread(plan: Plan) -> None:
    """Refuse a plan whose config would make an engine look for scales that are not there, or overlook some."""
    if plan.recipe.quantize is None:
        return
    block = read_block(quantization_block(plan.recipe.quantize, plan))
    written = {linear.module for job in plan.jobs for linear in job.linears}
    quantized = {linear.module for job in plan.jobs if job.action == ENCODE for linear in job.linears}
    linears = plan.model.linears
    roles = {name: role for name, role in module_roles(plan.model).items() if name in written or name not in linears}
    wrong = [
        (module, said)
        for module in engine_modules(plan.model.architecture, roles)
        if (said := disagreement(module, block, quantized))
    ]
    if wrong:
        module, said = wrong[0]
        more = f", and {len(wrong) - 1} more like it" if len(wrong) > 1 else ""
        what = f"recipe '{plan.recipe.name}' and its own list of unquantized modules disagree: {said}{more}"
        fix = f"change roles.{module.role}, or the list in quantize.config, so that both say the same"
        raise RecipeError(what, where=module.name, fix=fix)
