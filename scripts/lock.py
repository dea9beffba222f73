"""Write requirements/lock-dev.txt and lock-vllm.txt: constraints.txt with the SHA-256 of every file pip may choose.

    python scripts/lock.py

Run it in the environment of `scripts/freeze.py`. The first file has the requirements of `halfbyte[dev]`, the second the
others, for `halfbyte[eval]` and vLLM's CPU build. The hashes come from pip's index (or `index-url` in pip's
configuration) and cover source distributions, and wheels for CPython 3.10 and newer on glibc Linux, x86-64 and ARM.

torch is not locked: the right build depends on the machine, and CPU builds are on a separate index that is not queried.
`vllm` is the distribution that scripts/vllm_cpu_metadata.py writes, not a download.
"""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from halfbyte.publish.sbom import closure

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
DEV, VLLM = ROOT / "requirements" / "lock-dev.txt", ROOT / "requirements" / "lock-vllm.txt"
NOT_LOCKED = {"torch", "vllm"}
IN_DEV = ("halfbyte[dev]", "setuptools")  # setuptools builds packages without a wheel
OLDEST_MINOR = 10
MACHINES = ("x86_64", "aarch64")
HEADER = """\
# Written by scripts/lock.py from constraints.txt; `make` installs it with --require-hashes.
# {what}
"""


def pins(path: Path) -> dict[str, Requirement]:
    lines = [line.strip() for line in path.read_text().splitlines()]
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in wanted}


def pinned(requirement: Requirement) -> Version:
    (only,) = requirement.specifier
    return Version(only.version)


def index_url() -> str:
    """Return pip's primary index."""
    settings = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    for line in settings.splitlines():
        key, _, value = line.partition("=")
        if key in ("global.index-url", ":env:.index-url"):
            return value.strip("'")
    from pip._internal.models.index import PyPI

    return PyPI.simple_url


class Links(HTMLParser):
    """Collect the links of a project's index page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href") if tag == "a" else None
        if address:
            self.found.append(address)


def hashes(index: str, requirement: Requirement) -> list[str]:
    """Return the SHA-256 of each file of the pinned version that pip may choose."""
    page = f"{index.rstrip('/')}/{canonicalize_name(requirement.name)}/"
    with urllib.request.urlopen(page, timeout=120) as answer:
        links = [urlsplit(address) for address in Links(answer.read().decode()).found]
    files = {Path(link.path).name: link.fragment for link in links}
    chosen = [files[name] for name in sorted(files) if is_chosen(name, pinned(requirement))]
    if not chosen or not all(fragment.startswith("sha256=") for fragment in chosen):
        sys.exit(f"{requirement}: the index has no matching file, or one without SHA-256")
    return sorted({fragment.removeprefix("sha256=") for fragment in chosen})


def is_chosen(file: str, version: Version) -> bool:
    try:
        if file.endswith(".whl"):
            _, of, _, tags = parse_wheel_filename(file)
            return of == version and any(map(fits, tags))
        return parse_sdist_filename(file)[1] == version
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return False  # eggs and old installers


def fits(tag: Tag) -> bool:
    """Return whether a wheel is for a supported CPython on a supported Linux."""
    ours = tag.platform == "any" or (
        tag.platform.startswith(("manylinux", "linux")) and tag.platform.endswith(MACHINES)
    )
    if tag.interpreter.startswith("cp3") and tag.abi not in ("abi3", "none"):
        minor = tag.interpreter.removeprefix("cp3")
        return ours and tag.abi == tag.interpreter and minor.isdigit() and int(minor) >= OLDEST_MINOR
    return ours and tag.interpreter.startswith(("cp3", "py3"))


def entries(wanted: dict[str, Requirement], index: str) -> Iterator[str]:
    with ThreadPoolExecutor(8) as pool:
        for requirement, found in zip(
            wanted.values(), pool.map(lambda one: hashes(index, one), wanted.values()), strict=True
        ):
            yield " \\\n    ".join([str(requirement), *(f"--hash=sha256:{sha256}" for sha256 in found)])


def write(path: Path, what: str, wanted: dict[str, Requirement], index: str) -> None:
    path.write_text(HEADER.format(what=what) + "\n".join(entries(wanted, index)) + "\n")
    print(f"{path.name}: {len(wanted)} distributions", file=sys.stderr)


if __name__ == "__main__":
    tested, index = pins(CONSTRAINTS), index_url()
    of_dev = closure(*IN_DEV)
    lockable = {name: pin for name, pin in tested.items() if name not in NOT_LOCKED}
    write(
        DEV, "Requirements of halfbyte[dev], without torch.", {n: p for n, p in lockable.items() if n in of_dev}, index
    )
    write(
        VLLM,
        "Requirements of halfbyte[eval] and vLLM's CPU build beyond lock-dev.txt.",
        {n: p for n, p in lockable.items() if n not in of_dev},
        index,
    )
