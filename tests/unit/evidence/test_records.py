"""Evidence records: read as written; a wrong type, a missing field or another format is one clear error."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from card_evidence import everything, pruned

from halfbyte.evidence.audit import Audit
from halfbyte.evidence.comparison import Comparison
from halfbyte.evidence.folder import KINDS
from halfbyte.evidence.record import FORMAT, InvalidRecordError, Record, plain
from halfbyte.evidence.release import AfterRelease, Release

OUTPUTS = {"outputs": {"model.safetensors": {"nbytes": 7, "sha256": "a" * 64}}}
WHOLE = pruned() | everything() | {"after": {"stages": everything()["release"]["stages"]}}
WHOLE["provenance"] |= OUTPUTS
RECORDS = {**KINDS, "after": AfterRelease}
VERSIONED = [kind for kind, record in RECORDS.items() if record.version is not None]


def required(kind: type[Record]) -> Iterator[str]:
    for field in fields(kind):
        if field.default is MISSING and field.default_factory is MISSING:
            yield field.name


def written(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_is_read_as_it_was_written(tmp_path: Path, kind: str) -> None:
    record = RECORDS[kind].of(WHOLE[kind])
    record.write(tmp_path / "file.json")
    assert RECORDS[kind].read(tmp_path / "file.json") == record
    again = json.loads((tmp_path / "file.json").read_text())
    assert again == record.as_json()
    if kind not in ("plan", "prune"):  # these two are read only, and have more fields
        assert {key: value for key, value in WHOLE[kind].items() if key != FORMAT}.items() <= again.items() or kind in (
            "audit", "compare", "release", "after", "probe",
        ), kind  # fmt: skip
        assert WHOLE[kind].keys() <= again.keys() | {FORMAT}


@pytest.mark.parametrize("kind", RECORDS)
def test_a_missing_field_is_named(tmp_path: Path, kind: str) -> None:
    for name in required(RECORDS[kind]):
        value = {key: held for key, held in WHOLE[kind].items() if key != name}
        with pytest.raises(InvalidRecordError) as error:
            RECORDS[kind].read(written(tmp_path / "file.json", value))
        assert error.value.what == f"file.json is not a valid {RECORDS[kind].kind} record: {name} is missing"
        assert error.value.where == str(tmp_path / "file.json")
        assert error.value.fix.startswith("run halfbyte ")


@pytest.mark.parametrize("kind", RECORDS)
def test_a_wrong_type_is_named_in_every_field(tmp_path: Path, kind: str) -> None:
    for name in required(RECORDS[kind]):
        for wrong in ([[]], 10**400, {"a": [10**400]}, "\x00"):
            value = WHOLE[kind] | {name: wrong}
            try:
                record = RECORDS[kind].read(written(tmp_path / "file.json", value))
            except InvalidRecordError as error:
                assert error.what.startswith(f"file.json is not a valid {RECORDS[kind].kind} record: {name}"), name
                assert "\n" not in error.what
            else:
                assert record.as_json()[name] == wrong  # a field of this type
        with pytest.raises(InvalidRecordError, match=rf"record: {name}\b.* is "):
            RECORDS[kind].of(WHOLE[kind] | {name: [10**400]})


@pytest.mark.parametrize("kind", VERSIONED)
@pytest.mark.parametrize("version", [0, 2, "1", 1.0, None, True, [1]])
def test_another_format_is_refused(tmp_path: Path, kind: str, version: Any) -> None:
    path = written(tmp_path / "file.json", WHOLE[kind] | {FORMAT: version})
    with pytest.raises(InvalidRecordError) as error:
        RECORDS[kind].read(path)
    assert re.fullmatch(r"file.json has format .+, but this halfbyte reads format 1", error.value.what)


@pytest.mark.parametrize("kind", VERSIONED)
def test_files_of_format_1_without_the_number_are_read(kind: str) -> None:
    value = {key: held for key, held in WHOLE[kind].items() if key != FORMAT}
    assert RECORDS[kind].of(value).as_json()[FORMAT] == 1


@pytest.mark.parametrize(
    ("findings", "why"),
    [
        ([{"check": "a", "level": "fine", "text": ""}], "findings[0].level is 'fine', not one of good, note, bad"),
        ([{"check": "a", "level": "bad"}], "findings[0].text is missing"),
        ([{"check": 1, "level": "bad", "text": ""}], "findings[0].check is 1, not a string"),
        ([{"check": "a", "level": "bad", "text": "", "proven": 1}], "findings[0].proven is 1, not true or false"),
        ([None], "findings[0] is null, not an object"),
        ({}, "findings is an object, not a list"),
    ],
)
def test_the_error_names_the_path(findings: Any, why: str) -> None:
    with pytest.raises(InvalidRecordError) as error:
        Audit.of(WHOLE["audit"] | {"findings": findings})
    assert error.value.what == f"audit.json is not a valid audit record: {why}"


@pytest.mark.parametrize("value", [True, "1", None, 10**31, -(10**400)])
def test_implausible_numbers_are_refused(value: Any) -> None:
    for field in ("cosine", "layer"):
        layers = [WHOLE["compare"]["layers"][0] | {field: value}]
        with pytest.raises(InvalidRecordError, match=rf"layers\[0\].{field} is "):
            Comparison.of(WHOLE["compare"] | {"layers": layers})


def test_numbers_that_json_lacks_become_null() -> None:
    total = WHOLE["compare"]["total"] | {"perplexity_first": math.nan, "perplexity_second": math.inf}
    with pytest.raises(InvalidRecordError, match="perplexity_first is null, not a number"):
        Comparison.of(plain(WHOLE["compare"] | {"total": total}))


def test_unknown_fields_are_ignored() -> None:
    assert Release.of(WHOLE["release"] | {"added_later": 1}) == Release.of(WHOLE["release"])


@pytest.mark.parametrize("raw", [b"[]", b"{", b'{"a": NaN}', b"\xff", b"[" * 99999])
def test_what_is_no_object_is_one_sentence(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "audit.json").write_bytes(raw)
    with pytest.raises(InvalidRecordError) as error:
        Audit.read(tmp_path / "audit.json")
    assert error.value.what in ("audit.json is not a JSON object", "cannot read audit.json")
    with pytest.raises(FileNotFoundError):
        Audit.read(tmp_path / "none.json")


def test_api_keys_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-this-test")
    Release.of(WHOLE["release"] | {"why": ["sk-secret-of-this-test failed"]}).write(tmp_path / "release.json")
    assert "sk-secret" not in (tmp_path / "release.json").read_text()


def test_a_comparison_with_a_useless_model_is_readable(tmp_path: Path) -> None:
    value = json.loads(json.dumps(WHOLE["compare"]))
    value["total"]["perplexity_second"] = math.exp(700)  # the cap of `compare`
    value["layers"][0]["relative_error"] = None
    Comparison.of(value).write(tmp_path / "compare.json")
    again = Comparison.read(tmp_path / "compare.json")
    assert again.total.perplexity_second == math.exp(700)
    assert again.layers[0].relative_error is None


def test_an_invalid_loop_test_of_the_source_does_not_invalidate_the_plan() -> None:
    value = WHOLE["plan"] | {"pruned_before": {"loops": {"texts": 3, "loops": 1}}}
    assert KINDS["plan"].of(value).earlier_loops() is None
