"""Write sbom.cdx.json, a CycloneDX 1.6 bill of materials: the source, halfbyte and its dependencies, the output files.

It is built from the provenance record and the installed distributions, and is deterministic: the same release in the
same environment gives the same bytes. Distributions used only for serving or measuring are omitted, because they do not
affect the weights.

cyclonedx-python-lib is not used: it adds a dependency with dependencies of its own, its serial numbers and timestamps
would have to be overridden for a deterministic file, and a test validates this file against the official schema.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import uuid
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any
from urllib.parse import quote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from halfbyte.evidence.provenance import Provenance, SourceFacts
from halfbyte.publish.environment import PACKAGES

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


Component = dict[str, Any]

SPEC = "1.6"
_HALFBYTE = "halfbyte"
_OUTPUT, _SOURCE = "output", "source"  # prefixes of the files' references
_LICENSE_CLASS = "License :: "
_LONGEST_LICENSE = 100  # some distributions put the full text in the name field
_INSTALLED_SHA256 = "halfbyte:installed-files-sha256"  # over RECORD: differs between builds of a version


def sbom(record: Provenance) -> bytes:
    """Return the contents of sbom.cdx.json for a provenance record."""
    needed = closure(_HALFBYTE) or closure(*PACKAGES)  # halfbyte may run from a source tree without being installed
    libraries = [_library(name, dist) for name, (dist, _) in needed.items() if name != _HALFBYTE]
    ours, source = _ours(record), _source(record.source)
    references = {name: _purl(name, dist.version) for name, (dist, _) in needed.items()} | {_HALFBYTE: ours["bom-ref"]}
    depends_on = {references[name]: [references[need] for need in needs] for name, (_, needs) in needed.items()}
    depends_on.setdefault(ours["bom-ref"], [library["bom-ref"] for library in libraries])
    depends_on[_OUTPUT] = [source["bom-ref"], ours["bom-ref"]]
    bill = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": _HALFBYTE, "version": ours["version"]}]},
            "component": _output(record),
        },
        "components": [source, ours, *_python(record), *libraries],
        "dependencies": [{"ref": ref, "dependsOn": sorted(needs)} for ref, needs in sorted(depends_on.items())],
    }
    return (json.dumps({**bill, "serialNumber": _serial(bill)}, indent=1) + "\n").encode()


def _serial(bill: Mapping[str, Any]) -> str:
    """Return a serial number derived from the contents."""
    text = json.dumps(bill, sort_keys=True, separators=(",", ":"))
    return uuid.uuid5(uuid.NAMESPACE_OID, f"halfbyte sbom {text}").urn


def _output(record: Provenance) -> Component:
    source, recipe = record.source.name or _SOURCE, record.recipe.name or "4 bits"
    files = [_file(_OUTPUT, name, file.sha256) for name, file in record.outputs.items()]
    properties = {"halfbyte:plan": record.plan, "halfbyte:recipe-sha256": record.recipe.sha256}
    return {
        "type": "machine-learning-model",
        "bom-ref": _OUTPUT,
        "name": f"{source} as {recipe}",
        "components": files,
        **_properties(properties),
    }


def _source(source: SourceFacts) -> Component:
    name, revision = source.name, source.revision
    component: Component = {"type": "machine-learning-model", "bom-ref": _SOURCE, "name": name or _SOURCE}
    if revision:
        component["version"] = revision
        if name and name.count("/") == 1:  # a Hub repository
            component["purl"] = f"pkg:huggingface/{quote(name)}@{quote(revision, safe='')}"
    return {**component, "components": [_file(_SOURCE, shard, sha256) for shard, sha256 in source.shards.items()]}


def _file(of: str, name: str, sha256: str | None) -> Component:
    hashes = {"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}
    return {"type": "file", "bom-ref": f"{of}/{name}", "name": name, **hashes}


def _ours(record: Provenance) -> Component:
    code = record.code
    properties = {"halfbyte:commit": code.commit, "halfbyte:dirty": "true" if code.dirty else None}
    return {
        "type": "application",
        "bom-ref": _HALFBYTE,
        "name": _HALFBYTE,
        "version": code.version,
        "licenses": [{"expression": "Apache-2.0"}],
        **_properties(properties),
    }


def _python(record: Provenance) -> list[Component]:
    version = record.environment.python
    return [{"type": "platform", "bom-ref": "python", "name": "Python", "version": version}] if version else []


def _library(name: str, dist: Distribution) -> Component:
    purl = _purl(name, dist.version)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": dist.version,
        "purl": purl,
        **_licenses(dist),
        **_properties({_INSTALLED_SHA256: _installed_sha256(dist)}),
    }


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{quote(version, safe='')}"


def _licenses(dist: Distribution) -> Component:
    """Return the license from the distribution's metadata; empty if it is missing or a full text."""
    expression = _first(dist, "License-Expression")
    if expression:
        return {"licenses": [{"expression": expression}]}
    classes = [line for line in dist.metadata.get_all("Classifier") or () if line.startswith(_LICENSE_CLASS)]
    name = _first(dist, "License")
    if (not name or len(name) > _LONGEST_LICENSE or "\n" in name) and classes:
        name = classes[0].rpartition(" :: ")[2]
    known = 0 < len(name) <= _LONGEST_LICENSE and "\n" not in name and name.upper() != "UNKNOWN"
    return {"licenses": [{"license": {"name": name}}]} if known else {}


def _first(dist: Distribution, key: str) -> str:
    return str((dist.metadata.get_all(key) or [""])[0]).strip()


def _installed_sha256(dist: Distribution) -> str | None:
    """Return a hash over the hashes of the installed files, without files that the installer adds or rewrites."""
    rows = csv.reader(io.StringIO(dist.read_text("RECORD") or ""))
    files = sorted(f"{row[0]} {row[1]}" for row in rows if len(row) > 1 and row[1] and _is_shipped(row[0]))
    return hashlib.sha256("\n".join(files).encode()).hexdigest() if files else None


def _is_shipped(path: str) -> bool:
    return not path.startswith(("..", "/")) and ".dist-info/" not in path


def _properties(values: Mapping[str, str | None]) -> Component:
    properties = [{"name": name, "value": value} for name, value in values.items() if value is not None]
    return {"properties": properties} if properties else {}
