"""Console output: streams, and formatting on a terminal and in a pipe."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout

import pytest

from halfbyte.errors import HalfbyteError
from halfbyte.ui import console
from halfbyte.ui.console import Column, Output

ROWS = [
    {"name": "a", "size": 4.5, "tags": ["x", "y"], "there": True, "hidden": 1},
    {"name": "[bold]long[/bold] " + "w" * 150, "size": 16.25, "tags": [], "there": None, "hidden": 2},
]
COLUMNS = [Column("name", "name"), Column("size", "GB", number=True), Column("tags", "tags"), Column("there", "there")]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def known_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def on_terminal(show) -> tuple[str, str]:
    """Call a function with terminals as stdout and stderr, and return their contents."""
    with redirect_stdout(Terminal()) as out, redirect_stderr(Terminal()) as err:
        show()
    return out.getvalue(), err.getvalue()


def test_a_piped_table_is_aligned_and_never_cut(capsys):
    Output().table(ROWS, COLUMNS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert ROWS[1]["name"] in lines[2]
    column = lines[0].index("GB") + len("GB")
    assert [line[:column].split()[-1] for line in lines[1:]] == ["4.50", "16.25"]
    assert lines[1].endswith("x, y   yes")
    assert lines[2].endswith("-      -")


def test_json_has_every_key_of_the_same_rows(capsys):
    Output(as_json=True).table(ROWS, COLUMNS)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == ROWS
    assert printed.err == ""


def test_a_table_on_a_terminal_fits_it_and_shows_brackets_as_they_are():
    text, _ = on_terminal(lambda: Output().table(ROWS, COLUMNS))
    assert "\x1b[1m" in text  # bold headings
    assert "[bold]" in text
    assert max(len(line) for line in without_colours(text).splitlines()) <= 80
    assert text.count("w") == 150  # folded, not cut


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def show_everything(out: Output) -> None:
    out.table(ROWS, COLUMNS)
    out.facts({}, [("label", "text")])
    out.verdicts([("bad", "broken")])
    out.hint("halfbyte doctor")
    out.error(HalfbyteError("what", where="where", fix="fix"))


@pytest.mark.parametrize("how", ["option", "NO_COLOR", "dumb terminal"])
def test_no_escape_codes_when_colours_are_off(monkeypatch, how):
    if how == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    if how == "dumb terminal":
        monkeypatch.setenv("TERM", "dumb")
    out, err = on_terminal(lambda: show_everything(Output(no_color=how == "option")))
    assert "\x1b" not in out + err
    assert "halfbyte doctor" in err


def test_colours_on_a_terminal():
    out, err = on_terminal(lambda: show_everything(Output()))
    assert "\x1b[31m✗" in out
    assert "\x1b[31m✗" in err


def test_an_error_says_what_where_and_fix_on_stderr(capsys):
    Output().error(HalfbyteError("it broke", where="here", fix="glue"))
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["✗ it broke", "  where here", "  fix   glue"]
    assert printed.out == ""


def test_an_error_without_a_fix_has_no_empty_line(capsys):
    Output().error(HalfbyteError("it broke"))
    assert capsys.readouterr().err == "✗ it broke\n"


def test_verbose_shows_the_traceback(capsys):
    try:
        raise HalfbyteError("it broke")
    except HalfbyteError as error:
        Output(verbose=True).error(error)
    assert "Traceback" in capsys.readouterr().err


def test_quiet_keeps_data_and_errors_only(capsys):
    out = Output(quiet=True)
    out.note("note")
    out.hint("hint")
    out.text("data", "data")
    out.error(HalfbyteError("error"))
    printed = capsys.readouterr()
    assert printed.out == "data\n"
    assert printed.err == "✗ error\n"


def test_facts_are_aligned(capsys):
    Output().facts({}, [("cpu", "fast"), ("memory", "big")])
    assert capsys.readouterr().out == "cpu      fast\nmemory   big\n"


def test_facts_as_json_are_the_value_not_the_lines(capsys):
    Output(as_json=True).facts({"cores": 2}, [("cpu", "2 cores")])
    assert json.loads(capsys.readouterr().out) == {"cores": 2}


def test_verdicts_carry_their_symbols_and_stay_out_of_json(capsys):
    Output().verdicts([("good", "yes"), ("note", "hm"), ("bad", "no")])
    assert capsys.readouterr().out == "✓ yes\n! hm\n✗ no\n"
    Output(as_json=True).verdicts([("good", "yes")])
    assert capsys.readouterr().out == ""


# Clear the screen, set the title, a CSI of eight bits, a line turned around, half of a pair, carriage return, bell.
HOSTILE = "a\x1b[2J\x1b]0;owned\x07b\x9b31mc\u202egnp.exe\u2069 \udc80 d\re"
ACTS = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202e\u2069\ud800-\udfff]|\x1b(?!\\[[0-9;]*m)")


def every_sink(out: Output, text: str) -> None:
    out.table([{"name": text}], [Column("name", "name")])
    out.facts({"name": text}, [(text, text)])
    out.verdicts([("bad", text)])
    out.note(text)
    out.hint(text)
    out.error(HalfbyteError(text, where=text, fix=text))
    out.trace(ValueError(text))
    with out.progress(text) as bar:
        bar.step(text, 0, 2)
        bar.doing(text)
        bar.step(text, 1, 2)
        bar.doing(text)
    with out.activity(text) as activity:
        activity.at(1, 2, text)
        activity.step(text)
        activity.begin(text)
    with out.waiting() as line:
        line.show(text, 1.0)


@pytest.mark.parametrize("out", [Output(), Output(as_json=True), Output(no_color=True)], ids=["plain", "json", "grey"])
def test_untrusted_text_is_escaped_on_a_terminal(out, capsys):
    """On a terminal, rich's own colors and cursor sequences are allowed, and nothing else."""
    every_sink(out, HOSTILE)
    out.text("fine", HOSTILE)
    printed = capsys.readouterr()
    assert not ACTS.search(printed.out + printed.err)
    assert "owned" in printed.err
    shown, _ = on_terminal(lambda: every_sink(out, HOSTILE))
    assert not ACTS.search(shown.replace("\x1b[?25l", "").replace("\x1b[?25h", ""))
    shown, _ = on_terminal(lambda: out.text(HOSTILE, HOSTILE))
    assert not ACTS.search(shown)


def test_escaped_json_parses_to_the_same_value(capsys):
    Output(as_json=True).facts({"name": HOSTILE, "fine": "Łódź ٣ 日本 👨‍👩‍👧"}, [])
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"name": HOSTILE, "fine": "Łódź ٣ 日本 👨‍👩‍👧"}
    assert "日本 👨‍👩‍👧" in printed


def test_text_is_not_escaped_in_a_file(capsys):
    """`serve OUT > serve.sh` must be the script."""
    Output().text("a\tb\x1b[1m\n", None)
    assert capsys.readouterr().out == "a\tb\x1b[1m\n"


def test_a_newline_in_a_file_name_does_not_start_another_line(capsys, monkeypatch):
    monkeypatch.setattr(console, "FIRST_LINE_S", 0.0)
    with Output().activity("decoding a\n✗ all is well") as activity:
        assert activity.line().startswith("decoding a\\n✗ all is well, ")
        while not (printed := capsys.readouterr().err):
            pass
    assert printed.startswith("decoding a\\n✗ all is well, ")
    assert printed.count("\n") == 1
