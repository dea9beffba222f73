"""All stages on one screen: complete names and times, even with long log lines."""

import io
import re
from contextlib import redirect_stderr

import pytest

from halfbyte.evidence.release import StageRecord
from halfbyte.release.view import View
from halfbyte.ui.console import Output
from halfbyte.ui.units import duration

NAMES = ["quantize", "provenance", "publish"]
LONG = "halfbyte quantize models/kimi-mini OUT -r examples/kimi-mini-nvfp4.yaml " * 4


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch):
    """Return the last screen of a release as lines."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")

    def show(use):
        with redirect_stderr(Terminal()) as shown, View(Output(no_color=True), NAMES) as view:
            use(view)
        last = re.split(r"\x1b\[1A\x1b\[2K", shown.getvalue())[-1]  # it goes up and writes again
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).replace("\r", "")
        return [line.rstrip() for line in plain.split("\n") if line.strip()]

    return show


def done(name, seconds, why=""):
    return StageRecord(name=name, command=["halfbyte"], key="k", result=None, state="done", seconds=seconds, why=why)


def test_names_and_times_are_whole_beside_a_long_line(screen):
    def use(view):
        view.end(done("quantize", 3599.4, why=LONG))
        view.end(done("provenance", 5.26))
        view.begin("publish", LONG)

    first, second, third, total = screen(use)
    assert first.startswith("✓  quantize    59 min 59 s  halfbyte quantize")
    assert first.endswith("…")
    assert max(map(len, (first, second, third, total))) <= 80
    assert total.split()[:1] == ["total"] and "2 of 3 stages" in total and "time left unknown" in total
    assert second.split() == ["✓", "provenance", "5.3", "s"]
    assert third.startswith("▸  publish")


def test_what_a_stage_says_acts_on_no_terminal(screen):
    lines = screen(lambda view: view.end(done("quantize", 1.0, why="\x1b]0;owned\x07 fine")))
    assert "\\x1b]0;owned\\x07 fine" in lines[0]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.6, "1 min 00 s"), (3599.4, "59 min 59 s"), (7260, "2 h 01 min")],
)
def test_times_are_as_wide_as_their_column(seconds, said):
    assert duration(seconds) == said
    assert len(said) <= len("59 min 59 s")
