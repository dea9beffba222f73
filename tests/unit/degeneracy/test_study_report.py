"""The page of the pruning study marks the cells that were not measured."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks/results/pruning_kimi-mini_202611.json"


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module("benchmarks.study_pruning_report")
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def row(keep, method, calibration="mixed"):
    return {"name": f"{method} {calibration} {keep} %", "keep": keep, "method": method, "calibration": calibration,
            "tuned": False}  # fmt: skip


def test_missing_cells_are_named(report):
    whole = [row(keep, method) for keep in (75, 62, 50, 37) for method in ("reap", "ean")]
    assert report.unmeasured(whole) == ""
    assert report.unmeasured(whole[:-1]) == "at 37 % ean mixed"
    assert report.unmeasured(whole[1:-2]) == "at 75 % reap mixed; anything at 37 %"
    assert report.unmeasured([*whole[:-1], {**whole[-1], "tuned": True}]) == "at 37 % ean mixed"


def test_the_page_is_made_of_its_results_and_says_where_a_run_was_cut(report):
    results = json.loads(RESULTS.read_text())
    plots = [f"{RESULTS.stem}_kl.svg", f"{RESULTS.stem}_broken.svg"]
    page = report.page(results, plots)
    assert page == RESULTS.with_suffix(".md").read_text()
    assert "cut" not in page
    fewer = {**results, "builds": [row for row in results["builds"] if row["keep"] != 37]}
    page = report.page(fewer, plots)
    assert "The run was cut by its time limit.** 59 pruned builds were measured" in page
    assert "anything at 37 %" in page
