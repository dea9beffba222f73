"""Untrusted files: their bytes or an OSError, their JSON or a ValueError."""

import os

import pytest

from halfbyte.checkpoint import untrusted_files as foreign
from halfbyte.checkpoint.untrusted_files import DuplicateKeyError, parsed, plain_bytes, reject_duplicate_keys
from halfbyte.ui.escape import shortened


def test_a_plain_file_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert plain_bytes(tmp_path / "a", 3) == b"abc"
    with pytest.raises(OSError, match="3 bytes, more than 2"):
        plain_bytes(tmp_path / "a", 2)


def test_pipes_and_folders_are_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "zero", tmp_path):
        with pytest.raises(OSError):
            plain_bytes(path)


def test_json_nested_too_deeply_is_refused(monkeypatch):
    monkeypatch.setattr(foreign, "MOST_DEPTH", 3)
    assert parsed("[[[1]]]") == [[[1]]]
    assert parsed('{"a": {"b": [1]}}') == {"a": {"b": [1]}}
    for text in ("[[[[1]]]]", '{"a": {"b": {"c": []}}}', "[" * 100_000):
        with pytest.raises(ValueError, match="nested"):
            parsed(text)


def test_json_with_too_many_values_is_refused(monkeypatch):
    monkeypatch.setattr(foreign, "MOST_BRACKETS", 3)
    monkeypatch.setattr(foreign, "MOST_COMMAS", 3)
    assert parsed(b"[[],{}]") == [[], {}]
    for raw in (b"[[],{},[]]", "[1,2,3,4,5]"):
        with pytest.raises(ValueError, match="more values"):
            parsed(raw)


def test_a_duplicate_key_is_refused():
    with pytest.raises(DuplicateKeyError, match="duplicate key 'b'") as caught:
        parsed('{"a": 1, "b": 2, "b": 3}', reject_duplicate_keys)
    assert caught.value.name == "b"
    assert parsed('{"a": 1, "b": {"a": 2}}', reject_duplicate_keys) == {"a": 1, "b": {"a": 2}}


def test_a_long_text_is_shortened_in_its_middle():
    assert shortened("x" * 1500) == "x" * 1500
    text = shortened("a" + "x" * 1_000_000 + "z")
    assert len(text) < 1600 and text[0] == "a" and text[-1] == "z" and " ... 998,502 characters ... " in text
