"""The file of an engine's log: it never replaces other files, and earlier logs are kept."""

import subprocess
import sys
from pathlib import Path

import pytest

from halfbyte.errors import UsageError
from halfbyte.serve.engine_log import FIRST_LINE, EngineLog, default_log, new_log


def write(path: Path, text: bytes) -> None:
    with new_log(path) as file:
        file.write(text)


def test_a_file_that_is_not_a_log_is_kept(tmp_path):
    precious = tmp_path / "config.json"
    precious.write_text('{"a": 1}\n')
    with pytest.raises(UsageError) as error:
        new_log(precious)
    assert error.value.what == "this file is not a log of halfbyte and will not be overwritten"
    assert (error.value.where, error.value.fix) == (str(precious), "choose another file with --log")
    assert precious.read_text() == '{"a": 1}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_earlier_logs_are_numbered_and_nothing_is_overwritten(tmp_path):
    log = tmp_path / "deep" / "serve.log"
    for text in (b"one\n", b"two\n"):
        write(log, text)
    (tmp_path / "deep" / "serve.log.2").write_text("mine\n")
    write(log, b"three\n")
    texts = {path.name: path.read_text().splitlines() for path in log.parent.iterdir()}
    assert {name: lines[-1] for name, lines in texts.items()} == {
        "serve.log": "three",
        "serve.log.1": "one",
        "serve.log.2": "mine",
        "serve.log.3": "two",
    }
    assert texts["serve.log"][0].startswith(FIRST_LINE)


def test_an_empty_file_is_used_and_a_folder_refused(tmp_path):
    (tmp_path / "empty").touch()
    write(tmp_path / "empty", b"x\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]
    with pytest.raises(UsageError, match="must be a file"):
        new_log(tmp_path)
    with pytest.raises(UsageError, match="cannot write the log"):
        new_log(tmp_path / "empty" / "below")


def test_a_log_that_an_engine_still_writes_is_left_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_log(8001) == Path("serve.log")
    with new_log(Path("serve.log")) as file:
        engine = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=file)
    assert default_log(8001) == Path("serve-8001.log")  # ours is closed, the engine's is not
    with pytest.raises(UsageError, match="another engine is writing this log"):
        new_log(Path("serve.log"))
    engine.communicate(b"\n")
    assert default_log(8001) == Path("serve.log")


def test_the_first_line_is_not_part_of_the_engines_log(tmp_path):
    write(tmp_path / "log", b"")
    log = EngineLog(tmp_path / "log")
    log.follow()
    assert (log.lines(), log.error()) == ([], "")
