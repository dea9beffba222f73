"""Numbers in the documents come from files: what is committed is what would be written, and nothing is made up."""

import json
import struct
import zlib

import pytest
from training import plot_loss, write_docs

LOG = [
    {"step": 25, "seconds": 30.0, "loss": 7.0, "int4": False},
    {"step": 50, "seconds": 60.0, "loss": 0.5, "int4": True},
    {"steps": 50, "tokens": 120_000_000, "seconds": 60.0, "device": "a GPU"},
]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A run with a log and nothing else."""
    monkeypatch.setattr(write_docs, "RESULTS", tmp_path / "results")
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG))
    write_docs.take([tmp_path])
    return tmp_path / "results"


@pytest.mark.parametrize("path", write_docs.DOCUMENTS, ids=str)
def test_the_documents_are_what_the_results_say(path):
    text = (write_docs.ROOT / path).read_text()
    assert write_docs.filled(text) == text, "run `python -m training.write_docs`"
    assert {match["name"] for match in write_docs.PART.finditer(text)} <= write_docs.PARTS.keys()


def test_a_part_is_filled_and_filled_again(results):
    text = "a\n<!-- begin run -->\nold\n<!-- end run -->\nb\n"
    filled = write_docs.filled(text)
    assert "| GPU | a GPU |" in filled
    assert "| tokens | 120 million, each seen once |" in filled
    assert "| speed | 2.00 million tokens a second |" in filled
    assert "old" not in filled and filled.startswith("a\n") and filled.endswith("\nb\n")
    assert write_docs.filled(filled) == filled


def test_runs_that_went_on_from_each_other_add_up(results):
    write_docs.take([results.parent, results.parent])
    assert "| training | 2.0 minutes, 100 steps |" in write_docs.run()
    assert "| tokens | 240 million, each seen once |" in write_docs.run()


def test_what_was_not_measured_is_said_to_be_missing(results):
    says = "Not measured: scores.json is missing in training/results."
    filled = write_docs.filled("<!-- begin scores -->\n| 99 |\n<!-- end scores -->\n# begin metrics\n# end metrics")
    assert filled == (
        f"<!-- begin scores -->\n\n{says}\n\n<!-- end scores -->\n# begin metrics\n# {says}\n# end metrics"
    )


def test_a_missed_goal_is_said_to_be_missed(results):
    rows = {
        "world": {"items": 4, "score": 0.5, "error": 0.25, "ended": 1.0},
        "tools": {"items": 4, "score": 1.0, "error": 0.0, "ended": 1.0},
    }
    (results / "scores.json").write_text(json.dumps(rows))
    found = write_docs.scores()
    assert "| 50.0 ± 25.0 | 85 **missed** |" in found
    assert "| 100.0 ± 0.0 | 95 reached |" in found


def test_the_curve_is_a_png_with_every_point(results):
    png = (results / "loss.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + length
    pixels = zlib.decompress(chunks[b"IDAT"])
    rows = [pixels[y * (plot_loss.WIDTH + 1) + 1 :][: plot_loss.WIDTH] for y in range(plot_loss.HEIGHT)]
    coloured = [x for row in rows for x, colour in enumerate(row) if colour == plot_loss.BLUE]
    half = (plot_loss.LEFT + plot_loss.RIGHT) // 2
    assert abs(min(coloured) - half) <= 1 and abs(max(coloured) - plot_loss.RIGHT) <= 2  # 30 s and 60 s of 60 s


def test_a_run_that_went_on_counts_its_minutes_on(tmp_path):
    rows = [*LOG[:2], {"step": 25, "seconds": 30.0, "loss": 0.4, "int4": True}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [point.minutes for point in plot_loss.read(tmp_path / "log.jsonl")] == [0.5, 1.0, 1.5]
