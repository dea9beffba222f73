"""Find secrets and local paths in texts before they are published.

A secret is reported by kind and location, never by value.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Names appear in messages. Prefixes are those that the providers document for scanners.
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

# Folders of a machine or a user; paths in a checkpoint's documentation start with others.
HOMES = "home|Users|root|tmp|var/folders|private/var"
MOUNTS = (
    f"{HOMES}|mnt|media|scratch|workspace|work|fsx|lustre|gpfs|nfs|raid|ssd|nvme|dev/shm|data[0-9]*|datasets"
    "|srv|opt|var|net|storage|cluster|projects|Volumes"
)
# After a colon only home folders count: it precedes container paths, as in -v ~/.cache:/root/.cache.
_START = r"(?:(?<![\w.:/~$}}-])|(?<=file://)|(?<=:)(?=/(?:home|Users)/))"
_PATH = _START + r"/(?:{})(?:/[^\s\"'`<>|;,:()\[\]{{}}\\]+)+/?"
HOME_PATH = re.compile(_PATH.format(HOMES))
LOCAL_PATH = re.compile(_PATH.format(MOUNTS))


@dataclass(frozen=True, slots=True)
class Leak:
    """A secret or local path in a text."""

    file: str
    line: int
    what: str


def telling_host() -> str | None:
    """Return the host name, unless it is short or a common word."""
    host = socket.gethostname()
    return host if len(host) >= _SHORTEST_HOST and host.lower() not in _ORDINARY_HOSTS else None


def secrets(file: str, text: str, variables: Mapping[str, str]) -> Iterator[Leak]:
    """Yield every secret in a text."""
    for what, pattern in SECRETS.items():
        for match in pattern.finditer(text):
            yield Leak(file, _line(text, match.start()), what)
    for name, value in variables.items():
        if (at := text.find(value)) >= 0:
            yield Leak(file, _line(text, at), f"the value of the environment variable {name}")


def local_paths(file: str, text: str, out: Path, host: str | None, *, mounts: bool = True) -> Iterator[Leak]:
    """Yield every local path and the host name; without `mounts` only home folders, because configs may name others."""
    pattern = LOCAL_PATH if mounts else HOME_PATH
    for match in pattern.finditer(text):
        yield Leak(file, _line(text, match.start()), "a local path")
    for root in {str(out.absolute()), str(out.resolve())}:
        for match in within(root).finditer(text):
            if not pattern.match(text, match.start()):
                yield Leak(file, _line(text, match.start()), "the path of this folder")
    if host is not None:
        for match in host_pattern(host).finditer(text):
            yield Leak(file, _line(text, match.start()), "the host name of this machine")


def within(root: str) -> re.Pattern[str]:
    """Return a pattern that matches a folder, but not a longer name with the same prefix."""
    return re.compile(rf"(?<![\w./-]){re.escape(root)}(?![\w.-])")


def host_pattern(host: str) -> re.Pattern[str]:
    """Return a pattern that matches a host name as a whole word."""
    return re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
