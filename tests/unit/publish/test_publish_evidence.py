"""What counts as evidence: whole files, not older than the weights; for all else a reason and a command."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from halfbyte.errors import CheckpointError
from halfbyte.publish import evidence as evidence_module
from halfbyte.publish.evidence import PLACES, Evidence, read_evidence

HOUR_NS = 3600 * 10**9


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def put(out: Path, kind: str, text: str, *, older: bool = False) -> Evidence:
    path = out / "halfbyte" / PLACES[kind].file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if older:
        before = (out / "model.safetensors").stat().st_mtime_ns - HOUR_NS
        os.utime(path, ns=(before, before))
    return read_evidence(out)


def test_every_kind_is_found_where_its_command_writes_it(out: Path) -> None:
    for kind in PLACES:
        put(out, kind, '{"n": 1}')
    evidence = read_evidence(out)
    assert set(evidence.found) == set(PLACES)
    assert not evidence.missing


def test_nothing_measured_names_a_command_for_each(out: Path) -> None:
    evidence = read_evidence(out)
    assert not evidence.found
    assert {kind: missing.why for kind, missing in evidence.missing.items()} == dict.fromkeys(PLACES, "not measured")
    assert all(missing.command.startswith("halfbyte ") for missing in evidence.missing.values())
    assert str(out) in evidence.missing["probe"].command


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read"),
        ("[]", "holds no object"),
        ('{"kl": NaN}', "cannot be read"),
        ('{"kl": -1e999}', "cannot be read"),
        ('{"kl": 0.5', "cannot be read"),
        ("[" * 99999, "cannot be"),
    ],
)
def test_damaged_files_are_no_evidence(out: Path, text: str, why: str) -> None:
    evidence = put(out, "eval", text)
    assert evidence.get("eval") is None
    assert why in evidence.missing["eval"].why


def test_what_was_measured_before_the_weights_is_no_evidence(out: Path) -> None:
    assert "before these weights" in put(out, "bench", "{}", older=True).missing["bench"].why
    assert put(out, "plan", "{}", older=True).get("plan") == {}  # a plan comes before the weights


def test_an_audit_of_other_files_is_no_evidence(out: Path) -> None:
    assert put(out, "audit", json.dumps({"files": {"model.safetensors": [1, 2]}})).get("audit") is None


@pytest.mark.parametrize("kind", ["release", "audit", "provenance"])
def test_what_says_that_it_is_of_another_plan_is_no_evidence(out: Path, kind: str) -> None:
    put(out, "plan", '{"fingerprint": "ours"}')
    assert put(out, kind, '{"plan": "ours"}').get(kind) == {"plan": "ours"}
    found = put(out, kind, '{"plan": "theirs"}')
    assert found.get(kind) is None
    assert found.missing[kind].why == "it is of another plan, theirs"
    assert put(out, kind, "{}").get(kind) == {}
    put(out, "plan", "{")
    assert put(out, kind, '{"plan": "theirs"}').get(kind) is not None  # nobody knows which is ours


def test_a_file_too_large_to_read_is_no_evidence(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "MOST_NBYTES", 8)
    assert put(out, "bench", '{"a": 1}').get("bench") == {"a": 1}
    assert "is larger than" in put(out, "bench", '{"a": 12}').missing["bench"].why


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no finished checkpoint"):
        read_evidence(tmp_path)
