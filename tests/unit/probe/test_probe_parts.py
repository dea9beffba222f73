"""Helpers of the probes: joined chunks, marks, the picture, lengths, and the list of probes."""

import json
import struct
import zlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
from probe_setting import setting_of
from scripted_server import Said

from halfbyte.probe.answers import join_chunks, read_chunk, read_plain
from halfbyte.probe.context import Haystack, entries
from halfbyte.probe.judging import first_difference, judged, marked, share_of
from halfbyte.probe.output import causes
from halfbyte.probe.probe import Excerpt, Finding, Probe, Verdict
from halfbyte.probe.profiles import load_profile, profile_names
from halfbyte.probe.report import Report, Result
from halfbyte.probe.run import PROBES
from halfbyte.probe.vision import (
    BLACK,
    BLUE,
    RED,
    WHITE,
    Picture,
    smoke_picture,
)


def chunk(**delta):
    return read_chunk(json.dumps({"choices": [{"delta": delta}]}).encode(), 0.5)


def test_joined_chunks_equal_the_plain_answer():
    calls = [
        {"index": 0, "id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a"'}},
        {"index": 1, "id": "functions.g:1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": ": 1}"}},
    ]
    chunks = [
        chunk(role="assistant", content=""),
        chunk(reasoning_content="Hm."),
        chunk(content="A"),
        chunk(content="B"),
    ]
    chunks += [chunk(tool_calls=[one]) for one in calls]
    chunks += [read_chunk(b'{"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}', 1.0)]
    chunks += [read_chunk(b'{"choices": [], "usage": {"prompt_tokens": 3}}', 1.0)]
    joined = join_chunks(chunks)
    assert (joined["content"], joined["reasoning"], joined["finish_reason"]) == ("AB", "Hm.", "tool_calls")
    assert [one["function"] for one in joined["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'}, {"name": "g", "arguments": "{}"}
    ]  # fmt: skip
    assert [one["id"] for one in joined["tool_calls"]] == ["functions.f:0", "functions.g:1"]
    assert joined["usage"] == {"prompt_tokens": 3}
    assert joined["first_token_s"] == 0.5


def test_broken_chunks_are_errors_and_broken_bytes_are_counted():
    assert "unreadable chunk" in read_chunk(b"{", 0.0)["error"]
    assert "the stream reports" in read_chunk(b'{"error": "out of memory"}', 0.0)["error"]
    assert read_chunk(b'{"choices": [{"delta": {"content": "\xe9\x81"}}]}', 0.0)["bad_utf8"] is True
    assert "unreadable answer" in read_plain({"choices": []})["error"]
    assert "unreadable answer" in read_plain("no")["error"]


def test_a_mark_shows_what_a_terminal_hides():
    shown = Excerpt("ab\u200bcd\n", "a zero-width space", 2, 3)
    assert marked(shown) == "ab⟦\\u{200B}⟧cd⏎"
    long = Excerpt("x" * 500 + "BAD" + "y" * 500, "", 500, 503)
    assert marked(long) == "…" + "x" * 60 + "⟦BAD⟧" + "y" * 60 + "…"


def test_look_alike_characters_are_named():
    arabic, persian = "توحيد", "توحید"
    expected = "U+06CC ARABIC LETTER FARSI YEH instead of U+064A ARABIC LETTER YEH"
    assert expected in first_difference(arabic, persian).problem
    assert first_difference("same", "same") is None
    assert "the end instead of U+0065" in first_difference("same", "sam").problem


def pixels(png: bytes) -> tuple[int, int, list[bytes]]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    at, data = 8, b""
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0]
        data += body if kind == b"IDAT" else b""
        at += 12 + size
    raw = zlib.decompress(data)
    step = 1 + 3 * width
    assert len(raw) == height * step
    return width, height, [raw[y * step + 1 : (y + 1) * step] for y in range(height)]


def test_the_picture_is_a_png_with_both_squares_and_the_letters():
    width, height, rows = pixels(smoke_picture("K2-192", 166))
    assert (width, height) == (448, 336)
    colors = {row[x : x + 3] for row in rows for x in range(0, 3 * width, 3)}
    assert colors == {bytes(one) for one in (WHITE, BLACK, RED, BLUE)}
    assert rows[250][3 * 100 : 3 * 101] == bytes(RED)
    assert rows[250][3 * 300 : 3 * 301] == bytes(BLUE)
    assert smoke_picture("K2-192", 166) != smoke_picture("K2-192", 167)


def test_a_letter_has_its_dots():
    picture = Picture(8, 9)
    picture.text(1, 1, "1", 1)
    _, _, rows = pixels(picture.png())
    drawn = ["".join("#" if row[x : x + 3] == bytes(BLACK) else "." for x in range(0, 24, 3)) for row in rows]
    assert drawn[1:8] == ["...#....", "..##....", "...#....", "...#....", "...#....", "...#....", "..###..."]


def test_entries_have_different_keys_also_in_long_lists():
    words = load_profile("kimi").need("haystack", Haystack)
    result = entries(words, 20_000, seed=1)
    assert len({one.key for one in result}) == 20_000
    assert entries(words, 50, 1) == result[:50]
    assert entries(words, 50, 2) != result[:50]


def test_rates_carry_intervals():
    assert share_of(0, 40) == {"count": 0, "total": 40, "share": 0.0, "low": 0.0, "high": 0.0876}


def test_probe_names_are_unique_with_reasons_and_valid_sections():
    assert len({one.name for one in PROBES}) == len(PROBES)
    assert all(one.reason and one.title for one in PROBES)
    assert profile_names() == ["kimi", "mini"]


def test_every_cause_that_a_probe_can_name_is_known():
    named = {"wrong-answer", "structured", "tool-parser", "vision", "long-context", "not-repeatable", "server-options",
             "streaming", "broken-characters", "loop", "exclamation-marks"}  # fmt: skip
    assert named <= set(causes())


def test_skipped_is_never_passed():
    def one(verdict, *, gate=True):
        probe = Probe("p", "card", "a | b", "because", gate, lambda _: None)
        return Result(probe, Finding(verdict, "m"))

    assert not Report({}, [one(Verdict.SKIPPED)]).accepted
    assert Report({}, [one(Verdict.SKIPPED), one(Verdict.PASSED)]).accepted
    assert not Report({}, [one(Verdict.PASSED), one(Verdict.FAILED)]).accepted
    assert not Report({}, [one(Verdict.PASSED), one(Verdict.BROKEN)]).accepted
    assert Report({}, [one(Verdict.PASSED), one(Verdict.FAILED, gate=False)]).accepted


def test_missing_answers_are_not_right_and_no_answers_are_broken():
    from halfbyte.probe.answers import Answer

    good, bad = Answer("1", content="x"), Answer("2", error="HTTP 500")
    lost = judged([good, bad], [[], []])
    assert (lost.verdict, lost.cause) == (Verdict.BROKEN, None)  # nothing was found to be wrong
    assert lost.measured == "1 / 2 right, 1 without an answer: HTTP 500"
    assert judged([good, bad], [[], []], needed=1).verdict is Verdict.PASSED
    wrong = judged([good, good, bad], [[Excerpt("x", "wrong")], [], []])
    assert (wrong.verdict, wrong.cause) == (Verdict.FAILED, "wrong-answer")
    assert judged([bad, bad], [[], []]).verdict is Verdict.BROKEN
    assert judged([good, good], [[], []]).verdict is Verdict.PASSED


def test_a_loop_fails_regardless_of_right_answers():
    from halfbyte.probe.answers import Answer

    answers = [Answer(str(number), content="x") for number in range(4)]
    miss, loop = Excerpt("x", "3 instead of 4"), Excerpt("x", "loop: 'x' is repeated, about 9 times")
    assert judged(answers, [[], [], [], [miss]], needed=3).verdict is Verdict.PASSED
    looping = judged(answers, [[], [], [], [loop]], needed=3)
    assert (looping.verdict, looping.cause) == (Verdict.FAILED, "loop")


@pytest.mark.parametrize("name", ["kimi", "mini"])
def test_every_section_that_a_probe_reads_can_be_read(name, tmp_path):
    lengths = SimpleNamespace(limit=262_144, at=lambda share: round(share * 262_144))
    with setting_of(tmp_path, lambda _: Said("x"), {}, profile=name) as (served, _):
        setting = replace(served, lengths=lengths)
        costs = {one.name: one.cost(setting) for one in PROBES if one.lacks(setting) is None}
    assert len(costs) >= 30
    assert all(one.requests > 0 and one.prompt_tokens >= 0 for one in costs.values())
