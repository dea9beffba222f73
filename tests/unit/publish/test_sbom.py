"""sbom.cdx.json: valid CycloneDX, reproducible, complete, recorded, published, without facts about this machine."""

import json
import lzma
import sys
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from card_evidence import PROVENANCE
from jsonschema import Draft7Validator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from referencing import Registry, Resource

from halfbyte.evidence.provenance import Provenance
from halfbyte.publish import sbom as module
from halfbyte.publish.hub.secrets import telling_host
from halfbyte.publish.provenance import write_provenance
from halfbyte.publish.sbom import closure, sbom
from halfbyte.publish.verify import verify

SCHEMAS = Path(__file__).parents[2] / "golden" / "cyclonedx"
RECORD = Provenance.of(
    PROVENANCE
    | {
        "code": {"version": "0.1.0", "commit": "c" * 40, "dirty": True},
        "source": {"name": "maker/Model", "revision": "r" * 40, "shards": {"a.safetensors": "a" * 64, "b": None},
                   "identity": {}, "hashes": {}},
        "recipe": {"name": "nvfp4", "sha256": "f" * 64},
        "plan": "p" * 16,
        "outputs": {"config.json": {"nbytes": 2, "sha256": "b" * 64}},
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def errors():
    """Return the errors of the official schema, as published with cyclonedx-python-lib 11.12.0, for a bill."""
    files = {
        path.name.removesuffix(".xz"): json.loads(lzma.decompress(path.read_bytes())) for path in SCHEMAS.glob("*.xz")
    }
    found = files["bom-1.6.SNAPSHOT.schema.json"]
    beside = [(f"http://cyclonedx.org/schema/{name}", Resource.from_contents(held)) for name, held in files.items()]
    validator = Draft7Validator(found, registry=Registry().with_resources(beside))
    return lambda bill: [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(bill)]


@pytest.fixture
def bill(out, source):
    write_provenance(out, source)
    return json.loads((out / "halfbyte/sbom.cdx.json").read_text())


def references(bill):
    top = [bill["metadata"]["component"], *bill["components"]]
    return [one["bom-ref"] for found in top for one in (found, *found.get("components", ()))]


def test_a_bill_is_valid_and_the_schema_would_say_if_it_were_not(bill, errors):
    assert errors(bill) == []
    assert errors({**bill, "specVersion": 7})
    component = bill["components"][-1]
    assert errors({**bill, "components": [{**component, "hashes": [{"alg": "SHA-256", "content": "no hash"}]}]})
    assert errors({**bill, "components": [{**component, "licenses": [{"license": {"id": "No-Such-Licence"}}]}]})
    assert errors(json.loads(sbom(RECORD))) == []


def test_every_reference_is_there_once(bill):
    named = references(bill)
    assert len(named) == len(set(named))
    linked = {one for entry in bill["dependencies"] for one in (entry["ref"], *entry["dependsOn"])}
    assert linked <= set(named)
    assert {"output", "source", "halfbyte"} <= linked


def test_it_has_what_halfbyte_requires_and_what_that_requires(bill):
    libraries = {one["name"]: one for one in bill["components"] if one["type"] == "library"}
    direct = [Requirement(text) for text in distribution("halfbyte").requires]
    assert {canonicalize_name(one.name) for one in direct if one.marker is None} <= set(libraries)
    assert {"mdurl", "llvmlite"} <= set(libraries)  # of rich's markdown-it-py, and of numba
    assert not {"pytest", "vllm", "lm-eval"} & set(libraries)  # no byte of the weights is theirs
    assert all(one["version"] == version(name) for name, one in libraries.items())
    assert libraries["torch"]["purl"] == f"pkg:pypi/torch@{version('torch').replace('+', '%2B')}"
    edges = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert libraries["llvmlite"]["purl"] in edges[libraries["numba"]["purl"]]
    assert libraries["numba"]["purl"] in edges["halfbyte"]


def test_source_and_output_have_their_hashes(bill, out):
    record = json.loads((out / "halfbyte/provenance.json").read_text())
    made, of = bill["metadata"]["component"], bill["components"][0]
    assert (made["type"], of["type"]) == ("machine-learning-model", "machine-learning-model")
    assert {one["name"]: one["hashes"][0]["content"] for one in made["components"]} == {
        name: entry["sha256"] for name, entry in record["outputs"].items()
    }
    assert {one["name"]: one["hashes"][0]["content"] for one in of["components"]} == record["source"]["shards"]


def test_a_source_of_the_hub_has_its_address_and_unknown_hashes_are_left_out():
    found = json.loads(sbom(RECORD))["components"][0]
    assert found["purl"] == f"pkg:huggingface/maker/Model@{'r' * 40}"
    assert [("hashes" in one) for one in found["components"]] == [True, False]


def test_the_same_release_has_the_same_bytes_and_another_a_different_serial_number(out, source):
    path = out / "halfbyte/sbom.cdx.json"
    write_provenance(out, source)
    first, stamp = path.read_bytes(), path.stat().st_mtime_ns
    write_provenance(out, source)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (first, stamp)
    (out / "added.json").write_text("{}")
    write_provenance(out, source)
    assert json.loads(path.read_bytes())["serialNumber"] != json.loads(first)["serialNumber"]


def test_verify_sees_an_edit_and_a_loss(out, source):
    write_provenance(out, source)
    path = out / "halfbyte/sbom.cdx.json"
    assert verify(out).same
    path.write_text(path.read_text().replace("numba", "nvmba", 1))
    assert [(found.problem, found.file) for found in verify(out).differences] == [("changed", "halfbyte/sbom.cdx.json")]
    path.unlink()
    assert [(found.problem, found.file) for found in verify(out).differences] == [("missing", "halfbyte/sbom.cdx.json")]


def test_it_is_published_and_says_nothing_of_this_machine(halfbyte, hub, ready):
    code, _, error = halfbyte("publish", ready, "maker/kimi-4bit")
    assert code == 0, error
    sent = hub.files("maker/kimi-4bit")["halfbyte/sbom.cdx.json"]
    assert sent == (ready / "halfbyte/sbom.cdx.json").read_bytes()  # there was nothing to take out
    text = sent.decode()
    for word in (str(ready.parent), str(Path.home()), sys.prefix, telling_host(), "file://"):
        assert word is None or word not in text, word


def test_licences_are_short_names(bill):
    told = [one["licenses"][0] for one in bill["components"] if "licenses" in one]
    names = [one.get("expression") or one["license"]["name"] for one in told]
    assert len(told) > len(bill["components"]) * 3 // 4
    assert all(0 < len(name) <= 100 and "\n" not in name for name in names)


def test_a_source_tree_that_nobody_installed_still_has_a_bill(monkeypatch, errors):
    monkeypatch.setattr(module, "closure", lambda *wanted: {} if wanted == ("halfbyte",) else closure(*wanted))
    bill = json.loads(sbom(RECORD))
    assert errors(bill) == []
    assert {"numba", "torch"} <= {one["name"] for one in bill["components"]}
    (edges,) = [entry["dependsOn"] for entry in bill["dependencies"] if entry["ref"] == "halfbyte"]
    assert edges


def test_extras_are_followed_only_where_they_are_asked_for():
    assert "pytest" in closure("halfbyte[dev]")
    assert "pytest" not in closure("halfbyte")
    assert closure("no-such-distribution") == {}
