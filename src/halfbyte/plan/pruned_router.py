"""The router's shape, and how many experts it lets a layer drop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from halfbyte.errors import UsageError
from halfbyte.recipe.decisions import Prune

_NONE_DROPPABLE = "prune another model: this router needs all of its experts"


@dataclass(frozen=True, slots=True)
class RouterShape:
    """Each token selects `top_k` experts from the best `topk_group` of `n_group` contiguous groups."""

    experts: int
    top_k: int
    n_group: int = 1
    topk_group: int = 1

    @property
    def per_group(self) -> int:
        """The number of experts per group before pruning."""
        return self.experts // self.n_group


def keep_count(rule: Prune, router: RouterShape) -> int:
    """Return the number of experts to keep per layer; UsageError if the router could not work with it."""
    if (rule.keep is None) == (rule.drop is None):
        what = "keep and drop are both set or both missing"
        raise UsageError(what, where="prune", fix="set exactly one of keep (a count) and drop (a fraction)")
    count = rule.count(router.experts)
    check_count(count, router, where="prune.keep" if rule.keep is not None else "prune.drop")
    return count


def refuse_nothing_to_drop(rule: Prune, router: RouterShape) -> None:
    """Raise if a rule would drop no experts; plan files are not checked here."""
    if keep_count(rule, router) < router.experts:
        return
    if rule.keep is not None:
        what = f"keeping {rule.keep} of {router.experts} experts per layer drops none"
        raise UsageError(what, where="prune.keep", fix=_fewer(router))
    least = math.ceil(1000 * router.n_group / router.experts) / 10  # one expert per group, rounded up
    what = f"{rule.drop:.2%} of {router.experts} experts is less than one: none would be dropped"
    raise UsageError(what, where="prune.drop", fix=f"drop {least:g}% or more")


def _fewer(router: RouterShape) -> str:
    most = router.experts - router.n_group
    return f"keep {most} or fewer" if most >= _least(router) else _NONE_DROPPABLE


def _least(router: RouterShape) -> int:
    """Return the smallest number of experts a layer can have."""
    if router.n_group == 1:
        return router.top_k
    return router.n_group * max(2, -(-router.top_k // router.topk_group))


def check_count(count: int, router: RouterShape, *, where: str) -> None:
    """Raise if a layer cannot keep this number of experts."""
    if count > router.experts:
        what = f"cannot keep {count} of {router.experts} experts"
        raise UsageError(what, where=where, fix=_fewer(router))
    if count < router.top_k:
        what = f"{count} experts are too few: each token is routed to {router.top_k}"
        raise UsageError(what, where=where, fix=f"keep {router.top_k} or more")
    if router.n_group > 1:
        _check_groups(count, router, where)


def _check_groups(count: int, router: RouterShape, where: str) -> None:
    """Routers select the best groups first, so every group must keep the same number of experts, and enough of them."""
    groups = router.n_group
    if router.experts % groups:
        what = f"{router.experts} experts cannot be split into {groups} equal groups"
        raise UsageError(what, where="the router in config.json", fix="check n_group: config.json is inconsistent")
    each, rest = divmod(count, groups)
    if rest:
        valid = [near for near in (each * groups, (each + 1) * groups) if _least(router) <= near < router.experts]
        fix = f"keep {' or '.join(map(str, valid))}" if valid else _fewer(router)
        raise UsageError(f"{count} experts cannot be split into {groups} equal groups", where=where, fix=fix)
    if count < (least := _least(router)):
        why = f"{router.top_k} are selected from {router.topk_group} groups"
        if each == 1:  # engines also disable grouping with one expert per group
            why = "groups are scored by their two best experts"
        number = "1 expert in a group is" if each == 1 else f"{each} experts in a group are"
        raise UsageError(
            f"{number} too few: {why}",
            where=where,
            fix=f"keep {least} or more" if least < router.experts else _NONE_DROPPABLE,
        )
