"""The report's parts without a browser: hostile text, what is missing, files of other shapes, pictures."""

import io
import json
import zlib

import numpy as np
import pytest
from report_evidence import add_evidence, write_output

from halfbyte.publish.report.heat import NOTHING, png, shades
from halfbyte.publish.report.page import write_report
from halfbyte.publish.report.visible import visible


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return write_output(tmp_path_factory.mktemp("out"))


def test_nothing_is_hidden_in_a_text_of_a_stranger():
    assert visible("a\u202eb\x00\u200b\ud800\x1b") == "a⟨U+202E⟩b⟨U+0000⟩⟨U+200B⟩⟨U+D800⟩⟨U+001B⟩"
    assert visible("one\n\ttwo é 漢 🙂") == "one\n\ttwo é 漢 🙂"
    assert visible("x" * 20, 5) == "xxxxx … 15 more characters"
    assert visible("e" + "\u0301" * 50).count("⟨U+0301⟩") == 42


def test_a_folder_without_evidence_says_what_to_type(output, halfbyte):
    code, printed, _ = halfbyte("--json", "report", output)
    assert code == 0
    path = output / "halfbyte/report.html"
    assert json.loads(printed) == {"report": str(path), "nbytes": path.stat().st_size}
    text = path.read_text()
    assert "No verdict yet." in text
    for command in (
        "halfbyte release",
        "halfbyte audit",
        "halfbyte compare",
        "halfbyte probe",
        "halfbyte eval",
        "halfbyte bench",
    ):
        assert f"<code>{command} " in text
    assert str(output.parent) not in text  # a report is read elsewhere


def test_a_file_of_another_shape_costs_its_section_only(output):
    add_evidence(output, 5, 8)
    (output / "halfbyte/bench/bench.json").write_text('{"points": [{}]}')
    (output / "halfbyte/probe/probe.json").write_text('{"probes": 3, "counts": {}, "accepted": true}')
    text = write_report(output).read_text()
    assert text.count("not of the shape that this version writes") == 2
    assert "Difference to the source" in text


def test_pictures_are_what_they_show():
    pixels = shades(np.array([[0.0, 1.0, np.nan], [0.5, 1.0, 0.0]]))
    assert pixels.tolist() == [[0, 63, NOTHING], [32, 63, 0]]
    raw = png(pixels)
    held, at = io.BytesIO(raw), raw.index(b"IDAT")
    size = int.from_bytes(raw[at - 4 : at], "big")
    assert held.read(8) == b"\x89PNG\r\n\x1a\n"
    assert zlib.decompress(raw[at + 4 : at + 4 + size]) == bytes([0, 0, 63, NOTHING, 0, 32, 63, 0])
    assert not shades(np.zeros((2, 2))).any()
