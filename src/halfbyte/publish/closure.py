"""Which installed distributions a distribution stands on: what it requires, what those require, and so on."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

Needed = dict[str, tuple[Distribution, list[str]]]  # normalised name -> what is installed, and whom it requires


def closure(*wanted: str) -> Needed:
    """Return all distributions that these requirements (`halfbyte`, `halfbyte[dev]`) lead to and that are installed.

    What a marker excludes on this machine and what is not installed is left out.
    """
    found: Needed = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        name = str(canonicalize_name(requirement.name))
        asked = [(name, extra) for extra in ("", *sorted(requirement.extras)) if (name, extra) not in seen]
        if not asked or (found.get(name) is None and not _add(found, name)):
            continue
        seen.update(asked)
        needs = [need for _, extra in asked for need in _requirements(found[name][0], extra)]
        found[name] = found[name][0], sorted({*found[name][1], *(str(canonicalize_name(n.name)) for n in needs)})
        waiting += needs
    return {name: (dist, [one for one in needs if one in found]) for name, (dist, needs) in sorted(found.items())}


def _add(found: Needed, name: str) -> bool:
    try:
        found[name] = distribution(name), []
    except PackageNotFoundError:
        return False
    return True


def _requirements(dist: Distribution, extra: str) -> Iterable[Requirement]:
    """Return what a distribution requires on this machine, with an extra or without."""
    for text in dist.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # of times when anything could be written
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement
