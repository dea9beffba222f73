"""What a router needs of its experts, and how many of them may stay."""

from __future__ import annotations

from dataclasses import dataclass

from halfbyte.decisions import Prune
from halfbyte.errors import UsageError


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


def check_count(count: int, router: RouterShape, *, where: str) -> None:
    """Refuse a number of experts that a layer cannot keep."""
    if count > router.experts:
        what = f"{count} experts cannot stay of {router.experts}"
        raise UsageError(what, where=where, fix=f"keep {router.experts} or fewer")
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
        near = " or ".join(str(near) for near in (each * groups, (each + 1) * groups) if near)
        raise UsageError(f"{count} experts do not make {groups} equal groups", where=where, fix=f"keep {near}")
    least = max(2, -(-router.top_k // router.topk_group))
    if each < least:
        why = f"{router.top_k} are taken from {router.topk_group} groups"
        if each == 1:  # and engines stop grouping where groups have one expert each
            why = "groups are rated by their two best"
        number = "1 expert in a group is" if each == 1 else f"{each} experts in a group are"
        raise UsageError(f"{number} too few: {why}", where=where, fix=f"keep {least * groups} or more")
