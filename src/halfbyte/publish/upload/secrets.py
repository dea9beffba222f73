"""Things that must never be published, looked for in every text: keys, tokens, and where this machine keeps its files.

A secret is named by its kind and place, never by its value.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Names are what the sentence says. Prefixes are those that their makers documented for scanners.
SECRETS: Mapping[str, re.Pattern[str]] = {
    "a Hugging Face token": re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}\b"),
    "an OpenAI or Anthropic key": re.compile(r"\bsk-(?:proj-|ant-|svcacct-|admin-)?[A-Za-z0-9_-]{20,}"),
    "an AWS access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "an AWS secret key": re.compile(r"aws_secret_access_key\W{1,5}[A-Za-z0-9/+]{40}", re.IGNORECASE),
    "a Google key": re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})\b"),
    "a Slack token": re.compile(r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    "a Weights & Biases key": re.compile(r"WANDB_API_KEY\W{1,5}[0-9a-f]{40}"),
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    "an Authorization header": re.compile(
        r"\bauthorization\b[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE
    ),
    "a password in an address": re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"'<>]{1,64}:[^\s/@\"'<>]{3,}@[\w.-]+"),
}
_SHORTEST_HOST = 6
_ORDINARY_HOSTS = frozenset(("localhost", "localhost.localdomain", "halfbyte", "ubuntu", "debian"))

# Folders that belong to a machine or a person; a path of a checkpoint's own documentation has other ones.
HOMES = "home|Users|root|tmp|var/folders|private/var"
MOUNTS = (
    f"{HOMES}|mnt|media|scratch|workspace|work|fsx|lustre|gpfs|nfs|raid|ssd|nvme|dev/shm|data[0-9]*|datasets"
    "|srv|opt|var|net|storage|cluster|projects|Volumes"
)
# After a colon only a home: a container's own folders stand there, as in -v ~/.cache:/root/.cache.
_BEGINS = r"(?:(?<![\w.:/~$}}-])|(?<=file://)|(?<=:)(?=/(?:home|Users)/))"
_PATH = _BEGINS + r"/(?:{})(?:/[^\s\"'`<>|;,:()\[\]{{}}\\]+)+/?"
HOME_PATH = re.compile(_PATH.format(HOMES))
LOCAL_PATH = re.compile(_PATH.format(MOUNTS))


@dataclass(frozen=True, slots=True)
class Leak:
    """Something in a text that must not be published."""

    file: str
    line: int
    what: str


def telling_host() -> str | None:
    """Return this machine's name, unless it is a word that files have anyway."""
    host = socket.gethostname()
    return host if len(host) >= _SHORTEST_HOST and host.lower() not in _ORDINARY_HOSTS else None


def secrets(file: str, text: str, variables: Mapping[str, str]) -> Iterator[Leak]:
    """Yield every secret of a text."""
    for what, pattern in SECRETS.items():
        for match in pattern.finditer(text):
            yield Leak(file, _line(text, match.start()), what)
    for name, value in variables.items():
        if (at := text.find(value)) >= 0:
            yield Leak(file, _line(text, at), f"the value of the environment variable {name}")


def local_paths(file: str, text: str, out: Path, host: str | None, *, mounts: bool = True) -> Iterator[Leak]:
    """Yield every path of this machine, and its name; without `mounts` only homes, as configs may name the rest."""
    pattern = LOCAL_PATH if mounts else HOME_PATH
    for match in pattern.finditer(text):
        yield Leak(file, _line(text, match.start()), "a path of this machine")
    for root in {str(out.absolute()), str(out.resolve())}:
        for match in within(root).finditer(text):
            if not pattern.match(text, match.start()):
                yield Leak(file, _line(text, match.start()), "the path of this folder")
    if host is not None:
        for match in host_pattern(host).finditer(text):
            yield Leak(file, _line(text, match.start()), "the name of this machine")


def within(root: str) -> re.Pattern[str]:
    """Return what finds a folder in a text, and not a longer name that begins like it."""
    return re.compile(rf"(?<![\w./-]){re.escape(root)}(?![\w.-])")


def host_pattern(host: str) -> re.Pattern[str]:
    """Return what finds a machine's name as a word."""
    return re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
