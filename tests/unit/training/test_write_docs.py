"""Numbers in the documents come from files: the committed text equals the generated one."""

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
    """A run with only a log."""
    monkeypatch.setattr(write_docs, "RESULTS", tmp_path / "results")
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LOG))
    write_docs.take([tmp_path])
    return tmp_path / "results"


@pytest.mark.parametrize("path", write_docs.DOCUMENTS, ids=str)
def test_the_documents_are_what_the_results_say(path):
    text = (write_docs.ROOT / path).read_text()
    assert write_docs.filled(text) == text, "run `python -m training.write_docs`"
    assert {match["name"] for match in write_docs.PART.finditer(text)} <= write_docs.PARTS.keys()


def test_the_front_page_has_the_scores_of_the_committed_weights():
    text = (write_docs.ROOT / "README.md").read_text().partition("## What was measured")[2].partition("\n## ")[0]
    for name, found in write_docs.result("compare.json")["variants"].items():
        assert f"{100 * found['domains'][write_docs.ALL]['score']:.1f} %" in text, name


def test_a_part_is_filled_and_filled_again(results):
    text = "a\n<!-- begin run -->\nold\n<!-- end run -->\nb\n"
    filled = write_docs.filled(text)
    assert "| GPU | a GPU |" in filled
    assert "| tokens | 120 million, made while it trained |" in filled
    assert "| speed | 2.00 million tokens a second |" in filled
    assert "old" not in filled and filled.startswith("a\n") and filled.endswith("\nb\n")
    assert write_docs.filled(filled) == filled


def test_runs_that_went_on_from_each_other_add_up(results):
    write_docs.take([results.parent, results.parent])
    assert "| training | 2.0 minutes, 100 steps, in 2 stages that went on from each other |" in write_docs.run()
    assert "| 2 | 1.0 | 50 | 120 | 7.000 | 0.500 |" in write_docs.stages()
    assert "| tokens | 240 million, made while it trained |" in write_docs.run()


def test_what_an_earlier_run_has_measured_is_not_taken_for_the_last_ones(results, tmp_path):
    """Scores of other weights must not be listed next to the latest ones."""
    for name in ("first", "last"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text((tmp_path / "log.jsonl").read_text())
    (tmp_path / "first" / "scores.json").write_text("{}")
    (results / "tools.json").write_text("{}")
    write_docs.take([tmp_path / "first", tmp_path / "last"])
    assert sorted(path.name for path in results.iterdir()) == ["log.jsonl", "loss.png"]
    (tmp_path / "last" / "scores.json").write_text("{}")
    write_docs.take([tmp_path / "first", tmp_path / "last"])
    assert (results / "scores.json").exists()


def test_paths_of_a_machine_are_left_out():
    text = json.dumps({"command": "python -m training.compare /somewhere/run --items 3 --out /somewhere/run"})
    assert (
        json.loads(write_docs._without_paths(text))["command"] == "python -m training.compare RUN --items 3 --out RUN"
    )


def test_a_p_that_is_no_float_is_said_to_be_small():
    row = {"score": 0.5, "lost": 1245, "gained": 0, "p": 0.0}
    assert write_docs._cell(row, is_base=False) == "**50.0** (-1245 +0, p < 1e-300)"
    assert write_docs._cell(row | {"p": 0.25}, is_base=False) == "50.0 (-1245 +0, p = 0.2)"


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
        "copying": {"items": 4, "score": 0.96, "error": 0.0, "ended": 1.0},
    }
    (results / "scores.json").write_text(json.dumps(rows))
    found = write_docs.scores()
    assert "| 50.0 ± 25.0 | 85 **missed** |" in found
    assert "| 100.0 ± 0.0 | 95 reached, saturated |" in found
    assert "| 96.0 ± 0.0 | 95 reached |" in found


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
