"""Experts in the order in which they would stay, group by group where the router has groups.

The lowest scores go and the others stay in ascending order, as in the public REAP code. Of equal scores the lower
number stays: `torch.topk`, which that code uses, leaves this open, and answers differently on CPU and GPU. Because an
order does not depend on how many stay, what is kept of 192 experts is also kept of 256.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import UsageError
from halfbyte.prune.router import RouterShape

SUPER = "super expert"
UNOBSERVED = "unobserved"
SUPER_DROPPED = "super expert, dropped by hand"


def ranking(scores: NDArray[np.float64], router: RouterShape, first: Collection[int] = ()) -> NDArray[np.int64]:
    """Return [experts of a group, groups]: row k holds the k-th best of each group; those of `first` lead."""
    leads = np.zeros(router.experts, np.bool_)
    leads[list(first)] = True
    columns: list[NDArray[np.int64]] = []
    for group in range(router.n_group):
        members = np.arange(group * router.per_group, (group + 1) * router.per_group)
        order = np.lexsort((members, -scores[members], ~leads[members]))  # the last key decides first
        columns.append(members[order])
    return np.stack(columns, axis=1)


def best(scores: NDArray[np.float64], count: int, router: RouterShape, first: Collection[int] = ()) -> tuple[int, ...]:
    """Return the experts that stay, in ascending order."""
    rows = ranking(scores, router, first)[: count // router.n_group]
    return tuple(sorted(int(expert) for expert in rows.reshape(-1)))


def check_room(layer: int, reasons: Mapping[int, str], count: int, router: RouterShape) -> None:
    """Refuse to keep fewer experts than those that must stay: to drop one of them would be a silent choice."""
    room = count // router.n_group
    for group in range(router.n_group):
        held = [reason for expert, reason in reasons.items() if expert // router.per_group == group]
        if len(held) <= room:
            continue
        where = f"layer {layer}" + (f", group {group}" if router.n_group > 1 else "")
        kinds = " and ".join(f"{held.count(reason)} {reason}" for reason in sorted(set(held)))
        what = f"{len(held)} experts must stay ({kinds}), but there is room for {room}"
        fix = f"keep {len(held) * router.n_group} or more, or set prune.protect to false"
        if UNOBSERVED in held:
            fix = f"calibrate on more text, keep {len(held) * router.n_group} or more, or lower prune.min_tokens"
        raise UsageError(what, where=where, fix=fix)
