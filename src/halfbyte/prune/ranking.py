"""Rank experts by score, within each group if the router has groups.

The lowest scores are dropped and the kept experts stay in ascending order, as in the public REAP code. Of equal scores
the lower number is kept: `torch.topk`, used by that code, leaves ties open and differs between CPU and GPU. The ranking
does not depend on the count, so the experts kept at 192 are also kept at 256.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import UNOBSERVED
from halfbyte.plan.pruned_router import RouterShape


def ranking(scores: NDArray[np.float64], router: RouterShape, first: Collection[int] = ()) -> NDArray[np.int64]:
    """Return [experts per group, groups]: row k has the k-th best expert of each group; those in `first` lead."""
    leads = np.zeros(router.experts, np.bool_)
    leads[list(first)] = True
    columns: list[NDArray[np.int64]] = []
    for group in range(router.n_group):
        members = np.arange(group * router.per_group, (group + 1) * router.per_group)
        order = np.lexsort((members, -scores[members], ~leads[members]))  # the last key is the primary one
        columns.append(members[order])
    return np.stack(columns, axis=1)


def best(scores: NDArray[np.float64], count: int, router: RouterShape, first: Collection[int] = ()) -> tuple[int, ...]:
    """Return the best `count` experts in ascending order."""
    rows = ranking(scores, router, first)[: count // router.n_group]
    return tuple(sorted(int(expert) for expert in rows.reshape(-1)))


def check_room(layer: int, reasons: Mapping[int, str], count: int, router: RouterShape) -> None:
    """Raise if `count` is too small for the experts that must be kept, rather than silently drop one."""
    room = count // router.n_group
    for group in range(router.n_group):
        required = [reason for expert, reason in reasons.items() if expert // router.per_group == group]
        if len(required) <= room:
            continue
        where = f"layer {layer}" + (f", group {group}" if router.n_group > 1 else "")
        kinds = " and ".join(f"{required.count(reason)} {reason}" for reason in sorted(set(required)))
        what = f"{len(required)} experts must be kept ({kinds}), but only {room} can be"
        fix = f"keep {len(required) * router.n_group} or more, or set prune.protect to false"
        if UNOBSERVED in required:
            fix = f"calibrate on more text, keep {len(required) * router.n_group} or more, or lower prune.min_tokens"
        raise UsageError(what, where=where, fix=fix)
