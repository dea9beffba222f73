"""sbom.cdx.json: a bill of materials in CycloneDX 1.6: the source, what computed, and the files that came out.

It is made of the record that becomes provenance.json and of what is installed, and has neither time nor chance in it:
the same release on the same environment has the same bytes. Distributions that only served or measured are not in it,
because no byte of the weights is theirs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import uuid
from collections.abc import Mapping
from importlib.metadata import Distribution
from typing import Any
from urllib.parse import quote

from halfbyte.publish.closure import closure
from halfbyte.publish.environment import PACKAGES

Component = dict[str, Any]

SPEC = "1.6"
_HALFBYTE = "halfbyte"
_OUTPUT, _SOURCE = "output", "source"  # which begin the references of their files
_LICENCE_CLASS = "License :: "
_LONGEST_LICENCE = 100  # some distributions put the whole text where its name belongs
_INSTALLED_SHA256 = "halfbyte:installed-files-sha256"  # of names and hashes in RECORD: builds of a version differ in it


def sbom(record: Mapping[str, Any]) -> bytes:
    """Return the file's bytes for a record of provenance."""
    needed = closure(_HALFBYTE) or closure(*PACKAGES)  # a source tree that nobody installed
    libraries = [_library(name, dist) for name, (dist, _) in needed.items() if name != _HALFBYTE]
    ours, source = _ours(record), _source(record["source"])
    references = {name: _purl(name, dist.version) for name, (dist, _) in needed.items()} | {_HALFBYTE: ours["bom-ref"]}
    stands_on = {references[name]: [references[one] for one in ones] for name, (_, ones) in needed.items()}
    stands_on.setdefault(ours["bom-ref"], [one["bom-ref"] for one in libraries])
    stands_on[_OUTPUT] = [source["bom-ref"], ours["bom-ref"]]
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
        "dependencies": [{"ref": ref, "dependsOn": sorted(ones)} for ref, ones in sorted(stands_on.items())],
    }
    return (json.dumps({**bill, "serialNumber": _serial(bill)}, indent=1) + "\n").encode()


def _serial(bill: Mapping[str, Any]) -> str:
    """Return a number that another bill cannot have, and the same one always has."""
    said = json.dumps(bill, sort_keys=True, separators=(",", ":"))
    return uuid.uuid5(uuid.NAMESPACE_OID, f"halfbyte sbom {said}").urn


def _output(record: Mapping[str, Any]) -> Component:
    made_from, recipe = record["source"]["name"] or _SOURCE, record["recipe"]["name"] or "4 bits"
    files = [_file(_OUTPUT, name, entry["sha256"]) for name, entry in record["outputs"].items()]
    told = {"halfbyte:plan": record["plan"], "halfbyte:recipe-sha256": record["recipe"]["sha256"]}
    return {
        "type": "machine-learning-model",
        "bom-ref": _OUTPUT,
        "name": f"{made_from} as {recipe}",
        "components": files,
        **_properties(told),
    }


def _source(source: Mapping[str, Any]) -> Component:
    name, revision = source["name"], source["revision"]
    found: Component = {"type": "machine-learning-model", "bom-ref": _SOURCE, "name": name or _SOURCE}
    if revision:
        found["version"] = revision
        if name.count("/") == 1:  # a repository of the Hub
            found["purl"] = f"pkg:huggingface/{quote(name)}@{quote(revision, safe='')}"
    return {**found, "components": [_file(_SOURCE, shard, sha256) for shard, sha256 in source["shards"].items()]}


def _file(of: str, name: str, sha256: str | None) -> Component:
    hashes = {"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}
    return {"type": "file", "bom-ref": f"{of}/{name}", "name": name, **hashes}


def _ours(record: Mapping[str, Any]) -> Component:
    code = record["code"]
    told = {"halfbyte:commit": code.get("commit"), "halfbyte:changed": "true" if code.get("changed") else None}
    return {
        "type": "application",
        "bom-ref": _HALFBYTE,
        "name": _HALFBYTE,
        "version": code["version"],
        "licenses": [{"expression": "Apache-2.0"}],
        **_properties(told),
    }


def _python(record: Mapping[str, Any]) -> list[Component]:
    version = record["environment"].get("python")
    return [{"type": "platform", "bom-ref": "python", "name": "Python", "version": version}] if version else []


def _library(name: str, dist: Distribution) -> Component:
    purl = _purl(name, dist.version)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": dist.version,
        "purl": purl,
        **_licences(dist),
        **_properties({_INSTALLED_SHA256: _installed_sha256(dist)}),
    }


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{quote(version, safe='')}"


def _licences(dist: Distribution) -> Component:
    """Return a licence as the distribution's makers wrote it; nothing where they did not, or at length."""
    expression = _first(dist, "License-Expression")
    if expression:
        return {"licenses": [{"expression": expression}]}
    classes = [one for one in dist.metadata.get_all("Classifier") or () if one.startswith(_LICENCE_CLASS)]
    name = _first(dist, "License")
    if (not name or len(name) > _LONGEST_LICENCE or "\n" in name) and classes:
        name = classes[0].rpartition(" :: ")[2]
    known = 0 < len(name) <= _LONGEST_LICENCE and "\n" not in name and name.upper() != "UNKNOWN"
    return {"licenses": [{"license": {"name": name}}]} if known else {}


def _first(dist: Distribution, key: str) -> str:
    return str((dist.metadata.get_all(key) or [""])[0]).strip()


def _installed_sha256(dist: Distribution) -> str | None:
    """Return a hash of all hashes that were installed, without what an installer adds or writes anew."""
    rows = csv.reader(io.StringIO(dist.read_text("RECORD") or ""))
    files = sorted(f"{row[0]} {row[1]}" for row in rows if len(row) > 1 and row[1] and _is_shipped(row[0]))
    return hashlib.sha256("\n".join(files).encode()).hexdigest() if files else None


def _is_shipped(path: str) -> bool:
    return not path.startswith(("..", "/")) and ".dist-info/" not in path


def _properties(told: Mapping[str, str | None]) -> Component:
    found = [{"name": name, "value": value} for name, value in told.items() if value is not None]
    return {"properties": found} if found else {}
