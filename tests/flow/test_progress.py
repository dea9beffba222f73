"""Progress output of each long command: on a real terminal, in a pipe, quiet, and as JSON."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from calibratable import UNSERVED_RELEASE, WAFER, arguments, small, texts

from halfbyte.cli.main import run
from halfbyte.recipe.load import recipe_text

MINI = Path(__file__).parents[2] / "models" / "kimi-mini"
HALFBYTE = [sys.executable, "-m", "halfbyte"]
MARKUP = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@dataclass
class Excerpt:
    """The stderr of a command, each piece with its time, and the run time."""

    pieces: list[tuple[float, str]]
    seconds: float
    code: int
    stdout: str

    @property
    def text(self) -> str:
        return MARKUP.sub("", "".join(piece for _, piece in self.pieces))

    @property
    def first_s(self) -> float:
        return next(second for second, piece in self.pieces if MARKUP.sub("", piece).strip())


def shown(*words: object, terminal: bool) -> Excerpt:
    """Run a command with a terminal or a pipe as stderr, and record when it writes."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    begin = time.monotonic()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*HALFBYTE, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        pieces: list[tuple[float, str]] = []
        while True:
            waiting = select.poll()
            waiting.register(ours, select.POLLIN)
            waiting.poll(60_000)
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # a terminal whose last writer has gone
                break
            if not piece:
                break
            pieces.append((time.monotonic() - begin, piece.decode(errors="replace")))
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(ours)
    return Excerpt(pieces, time.monotonic() - begin, process.returncode, printed)


@pytest.fixture
def start_s():
    """Return the current startup time of the program with its first imports."""
    begin = time.monotonic()
    subprocess.run([*HALFBYTE, "--version"], check=True, capture_output=True)
    subprocess.run([sys.executable, "-c", "import numpy, click, rich.live"], check=True)
    return time.monotonic() - begin


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("progress")
    small(root / "source")
    texts(root / "news.jsonl")
    assert run(["--quiet", "quantize", str(root / "source"), str(root / "out"), *arguments(root / "news.jsonl")]) == 0
    return root


def commands(place: Path, new: Path) -> dict[str, tuple[list[object], list[str]]]:
    """Return each command with the progress that it must show."""
    data = place / "news.jsonl"
    return {
        "loops": (
            ["loops", MINI, "--prompts", 1, "--tokens", 24],
            [f"decoding {MINI} into memory", f"generating 2 texts with {MINI}", "tokens"],
        ),
        "audit": (["audit", place / "out", "--against", place / "source"], ["reading headers"]),
        "compare": (
            ["compare", place / "source", place / "out", "--data", f"news={data}", "--samples", 4, "--length", 24],
            ["reading the headers of both checkpoints", "layer 0  1 of"],
        ),
        "quantize": (
            ["quantize", place / "source", new / "made", *arguments(data)],
            ["reading the headers of the source", "reading the calibration data", "calibrating and quantizing"],
        ),
        "calibrate": (
            ["calibrate", place / "source", "-o", new / "stats", *arguments(data)],
            ["reading the source's headers and the calibration data", "measured layer"],
        ),
    }


NAMES = ("loops", "audit", "compare", "quantize", "calibrate")


@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_shows_within_two_seconds_what_a_command_does(place, tmp_path, start_s, name):
    words, wanted = commands(place, tmp_path)[name]
    found = shown(*words, terminal=True)
    assert found.code == 0, found.text
    assert found.first_s <= 2 * start_s + 2, (found.first_s, start_s)
    for text in wanted:
        assert text in found.text
    assert "0/?" not in found.text and "? bytes" not in found.text


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_gets_lines_of_the_phases_that_last(place, tmp_path, start_s, name):
    words, wanted = commands(place, tmp_path)[name]
    found = shown("--json", *words, terminal=False)
    assert found.code == 0, found.text
    json.loads(found.stdout)  # nothing of it on stdout
    assert "\x1b" not in found.text
    lines = [line for line in found.text.splitlines() if re.search(r", \d+\.\d s$", line)]
    assert len(lines) <= 3 + found.seconds / 1.5  # a phase is named once in 1.5 s at most
    if found.seconds > start_s + 4:
        assert any(text in found.text for text in wanted)
        assert found.first_s <= 2 * start_s + 1.5 + 2


def test_quiet_shows_nothing(place, tmp_path):
    for terminal in (True, False):
        words, _ = commands(place, tmp_path / str(terminal))["compare"]
        found = shown("--quiet", *words, terminal=terminal)
        assert (found.code, found.text) == (0, "")


def release_recipe(place: Path) -> Path:
    path = place / "release.yaml"
    block = UNSERVED_RELEASE.format(data=place / "news.jsonl")
    path.write_text(recipe_text(WAFER).partition("\nrelease:")[0] + block)
    return path


def test_a_release_shows_all_its_time_and_what_is_left_where_it_was_timed_before(place, tmp_path):
    words = ["-r", release_recipe(place), *arguments(place / "news.jsonl")[2:]]
    first = shown("release", place / "source", tmp_path / "one", *words, terminal=False)
    assert first.code == 0, first.text
    totals = [line for line in first.text.splitlines() if line.startswith("total")]
    assert "0 of 7 stages, time left unknown: no earlier times for quantize, audit, compare and 3 more" in totals[0]
    assert "1 of 7 stages, time left unknown: no earlier times for audit, compare, provenance and 2 more" in totals[1]
    assert totals[-1].endswith("7 of 7 stages")
    again = shown("release", place / "source", tmp_path / "two", *words, terminal=True)  # timed in the folder beside
    assert again.code == 0, again.text
    assert re.search(r"total +\d+(\.\d)? s +0 of 7 stages, about \d[^,\n]*? left", again.text)
    assert re.search(r"audit +about \d", again.text)
    assert "7 of 7 stages" in again.text
