"""Install commands for optional dependencies. They list the packages, because halfbyte is not on PyPI."""

from __future__ import annotations

import shlex
from importlib.metadata import PackageNotFoundError, requires


def install_extra(extra: str) -> str:
    """Return the command that installs the packages of an extra, with the version bounds of halfbyte's metadata."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - only needed for error messages

    try:
        requirements = [Requirement(text) for text in requires("halfbyte") or ()]
    except PackageNotFoundError:  # a source tree without an installation
        return f"pip install -e '.[{extra}]' in a checkout of halfbyte"
    packages: list[str] = []
    for requirement in requirements:
        marker = requirement.marker  # required dependencies have no marker, or one without `extra`
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            packages.append(f"{requirement.name}{extras}{requirement.specifier}")
    return f"pip install {shlex.join(packages)}"
