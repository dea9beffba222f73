"""Check a recipe's ignore list against its roles with the engines' matching rules.

A recipe contains both, and `--set` may change only one of them. The audit would detect the mismatch hours later.
"""

from __future__ import annotations

from halfbyte.errors import RecipeError
from halfbyte.plan.manifest import Plan
from halfbyte.plan.quantization_config import quantization_block
from halfbyte.plan.rules import ENCODE
from halfbyte.plan.vllm_matching import disagreement, engine_modules, module_roles, read_block


def refuse_misread(plan: Plan) -> None:
    """Raise RecipeError if an engine would expect scales that the output lacks, or ignore scales that it has."""
    if plan.recipe.quantize is None:
        return
    block = read_block(quantization_block(plan.recipe.quantize, plan))
    written = {linear.module for job in plan.jobs for linear in job.linears}
    quantized = {linear.module for job in plan.jobs if job.action == ENCODE for linear in job.linears}
    linears = plan.model.linears
    roles = {name: role for name, role in module_roles(plan.model).items() if name in written or name not in linears}
    mismatches = [
        (module, reason)
        for module in engine_modules(plan.model.family, roles)
        if (reason := disagreement(module, block, quantized))
    ]
    if mismatches:
        module, reason = mismatches[0]
        more = f", and {len(mismatches) - 1} more" if len(mismatches) > 1 else ""
        what = f"the roles and the ignore list of recipe '{plan.recipe.name}' disagree: {reason}{more}"
        fix = f"change roles.{module.role} or the list in quantize.config so that they agree"
        raise RecipeError(what, where=module.name, fix=fix)
