"""The provenance record: source, code and environment of a checkpoint, and the hash of every output file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from halfbyte.evidence.record import OMIT, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFacts:
    """The halfbyte that wrote the checkpoint."""

    version: str
    commit: str | None
    dirty: bool | None = field(default=None, metadata=OMIT)  # whether the source tree had changes


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """The source checkpoint."""

    name: str | None  # of its Hub repository
    revision: str | None
    shards: Mapping[str, str | None]  # SHA-256; null if not known
    identity: Mapping[str, str]  # digest of each shard's header
    hashes: Mapping[str, int]  # number of hashes by origin


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFacts:
    """The recipe."""

    name: str | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFacts:
    """The machine, described only by its hardware and software."""

    python: str
    packages: Mapping[str, str]
    cpu: str | None
    gpu: tuple[str, ...] | None
    torch_build: str | None = field(default=None, metadata=OMIT)
    os: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """One output file."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What `halfbyte publish` changed."""

    redacted: Mapping[str, str]  # SHA-256 of files before local paths were removed
    traces: str | None  # the dataset repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(Record):
    """Where a checkpoint comes from, and the SHA-256 of its files. `digest` covers all other fields."""

    kind = "provenance"
    file = "provenance.json"
    created_by = "halfbyte release SRC {out} -r RECIPE"
    measured = "outputs"

    halfbyte: str  # version
    created: str  # ISO 8601, UTC
    code: CodeFacts
    source: SourceFacts
    recipe: RecipeFacts
    plan: str | None  # fingerprint
    environment: EnvironmentFacts
    statistics: str | None  # SHA-256 of the calibration statistics
    data: Mapping[str, Any] | None  # the calibration data
    evidence: Mapping[str, str]  # SHA-256 of evidence and traces
    outputs: Mapping[str, OutputFile]
    hashes: Mapping[str, int]  # number of hashes by origin
    published: Published | None = field(default=None, metadata=OMIT)
    digest: str
