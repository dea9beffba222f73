"""What a router needs of its experts, and how many of them may stay."""

from __future__ import annotations

import math
from dataclasses import dataclass

from halfbyte.errors import UsageError
from halfbyte.recipe.decisions import Prune

_NONE_CAN_GO = "prune another model: the router of this one needs all of its experts"


@dataclass(frozen=True, slots=True)
class RouterShape:
    """A token picks `top_k` of the experts, among those of the best `topk_group` of `n_group` groups in a row."""

    experts: int
    top_k: int
    n_group: int = 1
    topk_group: int = 1

    @property
    def per_group(self) -> int:
        """How many experts a group has before pruning."""
        return self.experts // self.n_group


def keep_count(rule: Prune, router: RouterShape) -> int:
    """Return how many experts stay in a layer; UsageError for a count with which the router could not work."""
    if (rule.keep is None) == (rule.drop is None):
        what = "it is not said how many experts stay"
        raise UsageError(what, where="prune", fix="give exactly one of keep (a count) and drop (a share)")
    count = rule.count(router.experts)
    check_count(count, router, where="prune.keep" if rule.keep is not None else "prune.drop")
    return count


def refuse_nothing_to_drop(rule: Prune, router: RouterShape) -> None:
    """Refuse a rule with which every expert would stay; what a plan of somebody's says is another matter."""
    if keep_count(rule, router) < router.experts:
        return
    if rule.keep is not None:
        what = f"the layers have {router.experts} experts: to keep {rule.keep} is to drop none"
        raise UsageError(what, where="prune.keep", fix=_fewer(router))
    least = math.ceil(1000 * router.n_group / router.experts) / 10  # of a group's experts one, rounded up
    what = f"{rule.drop:.2%} of {router.experts} experts is less than one: none would go"
    raise UsageError(what, where="prune.drop", fix=f"drop {least:g}% or more")


def _fewer(router: RouterShape) -> str:
    most = router.experts - router.n_group
    return f"keep {most} or fewer" if most >= _least(router) else _NONE_CAN_GO


def _least(router: RouterShape) -> int:
    """Return how few experts a layer can have."""
    if router.n_group == 1:
        return router.top_k
    return router.n_group * max(2, -(-router.top_k // router.topk_group))


def check_count(count: int, router: RouterShape, *, where: str) -> None:
    """Refuse a number of experts that a layer cannot keep."""
    if count > router.experts:
        what = f"{count} experts cannot stay of {router.experts}"
        raise UsageError(what, where=where, fix=_fewer(router))
    if count < router.top_k:
        what = f"{count} experts are too few: each token is given to {router.top_k}"
        raise UsageError(what, where=where, fix=f"keep {router.top_k} or more")
    if router.n_group > 1:
        _check_groups(count, router, where)


def _check_groups(count: int, router: RouterShape, where: str) -> None:
    """Routers take the best groups first, so every group keeps as many experts, and enough of them."""
    groups = router.n_group
    if router.experts % groups:
        what = f"{router.experts} experts do not make {groups} equal groups"
        raise UsageError(
            what, where="the router in config.json", fix="check n_group: this checkpoint contradicts itself"
        )
    each, rest = divmod(count, groups)
    if rest:
        able = [near for near in (each * groups, (each + 1) * groups) if _least(router) <= near < router.experts]
        fix = f"keep {' or '.join(map(str, able))}" if able else _fewer(router)
        raise UsageError(f"{count} experts do not make {groups} equal groups", where=where, fix=fix)
    if count < (least := _least(router)):
        why = f"{router.top_k} are taken from {router.topk_group} groups"
        if each == 1:  # and engines stop grouping where groups have one expert each
            why = "groups are rated by their two best"
        number = "1 expert in a group is" if each == 1 else f"{each} experts in a group are"
        raise UsageError(
            f"{number} too few: {why}",
            where=where,
            fix=f"keep {least} or more" if least < router.experts else _NONE_CAN_GO,
        )
