"""Transitive dependencies of installed distributions."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

Needed = dict[str, tuple[Distribution, list[str]]]  # canonical name -> distribution and its direct dependencies


def closure(*wanted: str) -> Needed:
    """Return the installed distributions that requirements such as `halfbyte[dev]` depend on, directly or indirectly.

    Distributions that are not installed, or that a marker excludes on this machine, are omitted.
    """
    needed: Needed = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        name = str(canonicalize_name(requirement.name))
        extras = [(name, extra) for extra in ("", *sorted(requirement.extras)) if (name, extra) not in seen]
        if not extras or (needed.get(name) is None and not _add(needed, name)):
            continue
        seen.update(extras)
        needs = [need for _, extra in extras for need in _requirements(needed[name][0], extra)]
        needed[name] = needed[name][0], sorted({*needed[name][1], *(str(canonicalize_name(n.name)) for n in needs)})
        waiting += needs
    return {name: (dist, [need for need in needs if need in needed]) for name, (dist, needs) in sorted(needed.items())}


def _add(needed: Needed, name: str) -> bool:
    try:
        needed[name] = distribution(name), []
    except PackageNotFoundError:
        return False
    return True


def _requirements(dist: Distribution, extra: str) -> Iterable[Requirement]:
    """Return the requirements of a distribution on this machine, for an extra or for none."""
    for text in dist.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # in old metadata
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement
