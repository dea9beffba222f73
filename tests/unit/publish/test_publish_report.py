"""Parts of the report without a browser: hostile text, missing evidence, files of other shapes, pictures."""

import io
import json
import re
import shutil
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from card_evidence import SERVE, put
from pico import write_pico
from report_evidence import add_evidence, write_output

from halfbyte.publish.hub.secrets import local_paths
from halfbyte.publish.report.charts import NOTHING, png, shades
from halfbyte.publish.report.page import write_report
from halfbyte.publish.visible_text import visible
from halfbyte.ui.units import size


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


def test_a_source_gets_no_report(tmp_path, halfbyte):
    source = write_pico(tmp_path / "source", "int4-k2.6")
    code, _, error = halfbyte("report", source)
    assert code == 2
    assert "not an output folder of halfbyte: halfbyte/ is missing" in error
    assert not (source / "halfbyte").exists()


def test_what_the_recipe_does_not_do_is_not_called_missing(output, tmp_path):
    out = shutil.copytree(output, tmp_path / "out")
    plan = json.loads((out / "halfbyte/plan.json").read_text())
    plan["recipe"] |= {"calibrate": None, "prune": None}
    (out / "halfbyte/plan.json").write_text(json.dumps(plan))
    text = write_report(out).read_text()
    assert "Not calibrated: the recipe uses no calibration data." in text
    assert "Not pruned: the recipe keeps every expert." in text
    assert "kept and dropped experts" not in text
    (out / "halfbyte/plan.json").unlink()
    assert "Not pruned" not in write_report(out).read_text()  # unknown without a plan


def test_the_folders_of_a_comparison_are_not_shown(output, tmp_path):
    out = shutil.copytree(output, tmp_path / "out")
    add_evidence(out, 5, 8)
    path = out / "halfbyte/compare.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"first": "/a/SRC3", "second": "/b/OUT3"}))
    text = write_report(out).read_text()
    assert "This checkpoint against its source" in text
    assert "SRC3" not in text
    assert "OUT3" not in text


def test_a_file_of_another_shape_costs_its_section_only(output):
    add_evidence(output, 5, 8)
    put(output, {"bench": {"points": [{}]}, "probe": {"probes": 3, "counts": {}, "accepted": True}})
    text = write_report(output).read_text()
    assert "bench.json is not a valid bench record: servers is missing" in text
    assert "probe.json is not a valid probe record: halfbyte is missing" in text
    assert "Difference from the source" in text


def test_each_role_has_its_size_before_and_after(output, tmp_path):
    out = shutil.copytree(output, tmp_path / "out")
    plan = json.loads((out / "halfbyte/plan.json").read_text())  # as `quantize` wrote it
    assert sum(row["read_nbytes"] for row in plan["roles"]) == plan["read_nbytes"]
    text = write_report(out).read_text()
    (row,) = [row for row in plan["roles"] if row["role"] == "routed_experts"]
    before, after = size(row["read_nbytes"]), size(row["write_nbytes"])
    assert before != after
    assert f'{row["action"]}</td><td class="n">{before}</td><td class="n">{after}</td>' in text
    del plan["roles"]
    (out / "halfbyte/plan.json").write_text(json.dumps(plan))
    assert (
        "sizes by role before and after (not in plan.json, which an earlier version wrote)"
        in write_report(out).read_text()
    )


def test_probes_that_did_not_fit_are_counted_at_the_top_and_named(output, tmp_path):
    out = shutil.copytree(output, tmp_path / "out")
    add_evidence(out, 5, 8)
    path = out / "halfbyte/probe/probe.json"
    found = json.loads(path.read_text())
    late = [row for row in found["probes"] if row["verdict"] == "skipped"][:2]
    for row, title in zip(late, ("a long story", "a long list"), strict=True):
        row |= {"measured": "does not fit the budget: needs about 9 s", "title": title}
    path.write_text(json.dumps(found))
    text = write_report(out).read_text()
    counted = "39 of 58 probes ran; 2 did not fit the budget, 17 not applicable here"
    assert text.count(counted) == 2
    assert counted in text.partition('id="sizes"')[0]  # among the key figures
    assert re.search(rf"{counted}\. By group: [a-z0-9, ]+\. Not run: a long story; a long list\.", text)


class Tags(HTMLParser):
    """The tags of a page with their attributes, and the text between them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


HOSTILE_NAME = "<img src=x onerror=alert(1)>\"' $(touch pwned) `id` {{ 7*7 }} \x1b[31m\u202e\n</title><script>"


@pytest.mark.parametrize("measured", [False, True])
def test_a_hostile_folder_name_does_nothing(output, tmp_path, measured):
    out = tmp_path / HOSTILE_NAME.replace("/", "")
    shutil.copytree(output, out)
    if measured:
        add_evidence(out, 5, 8)
        (out / "halfbyte/eval/eval.json").unlink()
    else:
        shutil.rmtree(out / "halfbyte")
        (out / "halfbyte").mkdir()
    text = write_report(out).read_text()
    page, plain = Tags(text), Tags(write_report(shutil.copytree(out, tmp_path / "plain")).read_text())
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert not set("\x1b\u202e") & set(text)
    assert "touch pwned" not in text  # the title is a model's name, not the folder's
    commands = [line for line in page.text if line.startswith("halfbyte ")]
    assert commands and not [line for line in commands if "pwned" in line or str(tmp_path) in line]


LOCAL = "/home/jane/models/x and /mnt/data7/y/z and file:///srv/secret/w"


def test_no_folder_of_this_machine_is_told(output, tmp_path):
    out = shutil.copytree(output, tmp_path / "out")
    add_evidence(out, 5, 8, LOCAL)
    (out / "halfbyte/probe/probe.jsonl").unlink()  # without requests and answers
    place = tmp_path / "with space" / "out"
    launch = {"engine": "vllm", "gpus": "1xB200", "model": str(place), "command": ["vllm", "serve", str(place), "-a"]}
    (out / "halfbyte/serve").mkdir(exist_ok=True)
    launch = SERVE["launches"][0] | launch
    (out / "halfbyte/serve/serve.json").write_text(json.dumps(SERVE | {"launches": [launch]}))
    plan = json.loads((out / "halfbyte/plan.json").read_text())
    plan["recipe"]["calibrate"] = {"datasets": [{"source": "/data/jane doe/texts/rows.jsonl"}], "home": "/home/jane"}
    (out / "halfbyte/plan.json").write_text(json.dumps(plan))
    text = write_report(out).read_text()
    for told in ("jane", "/mnt", "data7", "/srv", "secret", "with space", str(tmp_path)):
        assert told not in text, told
    assert "rows.jsonl" in text and "vllm serve ./kimi_k25-REAP8-NVFP4 -a" in text
    assert list(local_paths("halfbyte/report.html", text, out, None)) == []


def test_without_a_plan_no_place_is_told(output, tmp_path):
    out = shutil.copytree(output, tmp_path / "out")
    (out / "halfbyte/plan.json").unlink()
    assert str(tmp_path) not in write_report(out).read_text()


def test_what_a_model_answered_keeps_its_words(output, tmp_path):
    out = shutil.copytree(output, tmp_path / "out")
    add_evidence(out, 5, 8, "look into /etc/ssh/config")
    text = write_report(out).read_text()
    assert '<pre dir="ltr" translate="no">look into /etc/ssh/config' in text
    assert "look into …/config" in text


def test_a_folder_that_cannot_be_written_to(output, tmp_path, halfbyte, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("halfbyte.publish.report.page.write_whole", refuse)
    code, _, error = halfbyte("report", output)
    assert (code, "cannot write: Permission denied" in error) == (3, True)


def test_pictures_are_what_they_show():
    pixels = shades(np.array([[0.0, 1.0, np.nan], [0.5, 1.0, 0.0]]))
    assert pixels.tolist() == [[0, 63, NOTHING], [32, 63, 0]]
    raw = png(pixels)
    held, at = io.BytesIO(raw), raw.index(b"IDAT")
    nbytes = int.from_bytes(raw[at - 4 : at], "big")
    assert held.read(8) == b"\x89PNG\r\n\x1a\n"
    assert zlib.decompress(raw[at + 4 : at + 4 + nbytes]) == bytes([0, 0, 63, NOTHING, 0, 32, 63, 0])
    assert not shades(np.zeros((2, 2))).any()
