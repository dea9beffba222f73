"""Valid evidence: complete files, measured on these weights; otherwise a reason and a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from card_evidence import everything, pruned
from card_evidence import measured as measured_here

from halfbyte.errors import CheckpointError
from halfbyte.evidence import record
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.folder import KINDS, Evidence, read_evidence, to_measure
from halfbyte.evidence.launches import Launches
from halfbyte.evidence.measured_files import MEASURED
from halfbyte.evidence.plan import PlanSummary

WHOLE = pruned() | everything()  # each kind, as its command writes it


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def put(out: Path, kind: str, text: str, *, measured: bool = True) -> Evidence:
    path = out / "halfbyte" / KINDS[kind].file
    path.parent.mkdir(parents=True, exist_ok=True)
    if text.startswith("{") and text.endswith("}") and "N" not in text and "999" not in text:
        value = WHOLE[kind] | json.loads(text)
        text = json.dumps(measured_here(out, kind, value) if measured else value)
    path.write_text(text)
    return read_evidence(out)


def test_every_kind_is_found_where_its_command_writes_it(out: Path) -> None:
    for kind in KINDS:
        put(out, kind, "{}")
    evidence = read_evidence(out)
    assert set(evidence.records) == set(KINDS)
    assert not evidence.missing


def test_nothing_measured_names_a_command_for_each(out: Path) -> None:
    evidence = read_evidence(out)
    assert not evidence.records
    assert {kind: missing.why for kind, missing in evidence.missing.items()} == dict.fromkeys(KINDS, "not measured")
    assert all(missing.command.startswith("halfbyte ") for missing in evidence.missing.values())
    assert str(out) in evidence.missing["probe"].command


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot read"),
        ("[]", "is not a JSON object"),
        ('{"kl": NaN}', "cannot read"),
        ('{"kl": -1e999}', "cannot read"),
        ('{"kl": 0.5', "cannot read"),
        ("[" * 99999, "cannot read"),
    ],
)
def test_damaged_files_are_no_evidence(out: Path, text: str, why: str) -> None:
    evidence = put(out, "eval", text)
    assert evidence.get(Evaluation) is None
    assert why in evidence.missing["eval"].why


def test_what_names_no_files_is_no_measurement(out: Path) -> None:
    why = "it does not list the files it was measured on"
    assert put(out, "bench", "{}", measured=False).missing["bench"].why == why
    assert put(out, "plan", "{}", measured=False).get(PlanSummary)  # a plan comes before the weights


def test_an_audit_of_other_files_is_no_evidence(out: Path) -> None:
    audit = json.dumps({MEASURED: {"config.json": "0", "model.safetensors": "0"}})
    why = "measured on other files: config.json has changed since"
    assert put(out, "audit", audit).missing["audit"].why == why


@pytest.mark.parametrize("kind", ["release", "audit", "provenance"])
def test_what_says_that_it_is_of_another_plan_is_no_evidence(out: Path, kind: str) -> None:
    put(out, "plan", '{"fingerprint": "ours"}')
    assert kind in put(out, kind, '{"plan": "ours"}').records
    found = put(out, kind, '{"plan": "theirs"}')
    assert kind not in found.records
    assert found.missing[kind].why == "it belongs to another plan, theirs"
    assert kind in put(out, kind, '{"plan": null}').records
    put(out, "plan", "{")
    assert kind in put(out, kind, '{"plan": "theirs"}').records  # our own plan is unknown


def test_a_file_too_large_to_read_is_no_evidence(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = put(out, "serve", "{}")
    assert found.get(Launches)
    monkeypatch.setattr(record, "MOST_NBYTES", found.path(Launches).stat().st_size)
    assert put(out, "serve", "{}").get(Launches)
    assert "is larger than" in put(out, "serve", '{"more": 1}').missing["serve"].why


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no finished checkpoint"):
        read_evidence(tmp_path)


@pytest.mark.parametrize("calibrates", [True, False])
@pytest.mark.parametrize("prunes", [True, False])
def test_only_what_the_recipe_does_is_still_to_measure(out: Path, calibrates: bool, prunes: bool) -> None:
    recipe = WHOLE["plan"]["recipe"] | {
        "calibrate": {"samples": 1} if calibrates else None, "prune": {"keep": 1} if prunes else None,
    }  # fmt: skip
    wanted = to_measure(put(out, "plan", json.dumps(WHOLE["plan"] | {"recipe": recipe})))
    assert ("coverage" in wanted, "prune" in wanted) == (calibrates, prunes)
    assert wanted.keys() | {"coverage", "prune"} == KINDS.keys() - {"plan"}
    assert not [one.command for one in wanted.values() if "one that" in one.command]


def test_a_damaged_file_is_to_measure_whatever_the_recipe_does(out: Path) -> None:
    put(out, "plan", json.dumps(WHOLE["plan"] | {"recipe": WHOLE["plan"]["recipe"] | {"calibrate": None}}))
    assert "cannot read" in to_measure(put(out, "coverage", "{"))["coverage"].why


@pytest.mark.parametrize("plan", ["{", "[]", '{"recipe": 1, "calibration": 2}'])
def test_without_a_recipe_nothing_says_that_it_calibrates_or_prunes(out: Path, plan: str) -> None:
    assert not {"coverage", "prune"} & to_measure(put(out, "plan", plan)).keys()
