"""The bench command from arguments to files, with a small load generator of known speed."""

import json
import random
from pathlib import Path

import pytest

from halfbyte.bench import server as bench_server
from halfbyte.bench import vllm_generator
from halfbyte.cli.main import run

RECORDED = Path(__file__).parent / "recorded"


class Generator:
    """Answer each order with requests at a known pace; A is twice as fast as B. `stop_at` simulates Ctrl-C."""

    orders: list
    stop_at = None
    failing = ""

    def __init__(self, log):
        Generator.orders = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        Generator.ended = True

    def block(self, order):
        if len(Generator.orders) == Generator.stop_at:
            raise KeyboardInterrupt
        Generator.orders.append(order)
        if Generator.failing and order.name.startswith(Generator.failing):
            return {"failed": "the block timed out after 90 s"}
        gap = (0.01 if order.name.startswith("A") else 0.02) * random.Random(order.head_seed).uniform(0.95, 1.05)
        count, output = order.requests, order.point.output
        result = {
            "duration": count * output * gap,
            "start_times": [at * output * gap for at in range(count)],
            "ttfts": [gap] * count,
            "latencies": [output * gap] * count,
            "itls": [[gap] * (output - 1)] * count,
            "input_lens": [order.point.prompt] * count,
            "output_lens": [output] * count,
            "errors": [""] * count,
        }
        return {"result": result, "processor_share": 0.1}


@pytest.fixture
def bench(tmp_path, monkeypatch, serve):
    """Return a function that runs the command against a simulated GPU server, and its output folder."""
    monkeypatch.setattr(vllm_generator, "VllmGenerator", Generator)
    monkeypatch.setattr(bench_server, "_gpu_here", lambda: True)
    Generator.stop_at, Generator.failing, Generator.ended = None, "", False
    pages = {"/v1/models": {"data": [{"id": "mini", "root": str(tmp_path), "max_model_len": 512}]}}
    urls = [serve(pages), serve(pages)]
    folder = tmp_path / "out"

    def call(*options: str, against: bool = True) -> int:
        against_it = ["--against", urls[1]] if against else []
        basic = ["bench", urls[0], *against_it, "--shape", "32:8", "--concurrency", "1,2", "-o", str(folder), "--json"]
        return run([*basic, *options])

    call.folder, call.pages = folder, pages
    return call


def test_turns_are_abba_and_everything_is_written(bench, capsys):
    assert bench("--slo", "ttft=1s", "--blocks", "6") == 0
    outcome = json.loads(capsys.readouterr().out)
    names = [order.name for order in Generator.orders[:10]]
    assert names == ["A-1", "B-1", "A0", "B0", "B1", "A1", "A2", "B2", "B3", "A3"]
    assert [order.requests for order in Generator.orders[14:17]] == [2, 2, 8], "the warm-up asks once for each user"
    assert len({order.head_seed for order in Generator.orders}) == len(Generator.orders)
    assert outcome == json.loads((bench.folder / "bench.json").read_text())
    assert [row["label"] for row in outcome["points"]][:1] == ["concurrency 1, 32 in / 8 out"]
    assert outcome["points"][0]["goodput_share"] == 1
    assert any("at least" in said and "more output tokens" in said for said in outcome["headlines"])
    assert outcome["comparisons"][0]["individual"]["ratio"] == pytest.approx(2, rel=0.05)
    assert "<svg" in (bench.folder / "bench.svg").read_text()
    lines = (bench.folder / "bench.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 24
    assert json.loads(lines[1])["requests"][0]["output_tokens"] == 8


def test_ctrl_c_keeps_complete_blocks_and_the_run_resumes(bench, capsys):
    Generator.stop_at = 5  # two for the warm-up, A0, B0, B1
    assert bench() == 130
    assert Generator.ended
    said = capsys.readouterr().err
    assert "interrupted; 3 blocks are kept" in said
    assert "run the same command to resume" in said
    Generator.stop_at = None
    assert bench() == 0
    names = [order.name for order in Generator.orders]
    assert names[:4] == ["A-1", "B-1", "B1", "A1"], "the first pair is there; half a pair is measured again"
    assert len((bench.folder / "bench.jsonl").read_text().splitlines()) == 1 + 24
    assert bench() == 0
    assert Generator.orders == [], "nothing is left to do"


def test_a_second_bench_in_the_same_folder_is_refused(bench, capsys, monkeypatch):
    second = []

    def block(self, order):
        if not second:
            second.append(None)  # or the second would start a third
            second[0] = bench()
        return own(self, order)

    own = Generator.block
    monkeypatch.setattr(Generator, "block", block)
    assert bench() == 0
    assert second == [2]
    assert "another run is writing into this folder" in capsys.readouterr().err
    assert len((bench.folder / "bench.jsonl").read_text().splitlines()) == 1 + 24
    assert bench() == 0, "the lock is gone with the run"


@pytest.mark.parametrize(
    ("page", "other", "why"),
    [
        ("/metrics", "process_start_time_seconds 2.0\n", "A started: 1.0 before, 2.0 now"),
        ("/version", {"version": "0.33.0"}, "A version: 0.32.0 before, 0.33.0 now"),
        ("/v1/models", {"data": [{"id": "mini", "root": "/pruned", "max_model_len": 512}]}, "A root: "),
    ],
)
def test_another_server_at_the_same_address_does_not_resume(bench, capsys, page, other, why):
    bench.pages |= {"/metrics": "process_start_time_seconds 1.0\n", "/version": {"version": "0.32.0"}}
    Generator.stop_at = 5
    tokenizer = ["--tokenizer", "/mini"]
    assert bench(*tokenizer) == 130
    before = (bench.folder / "bench.jsonl").read_bytes()
    Generator.stop_at = None
    assert bench("--tokenizer", "/other") == 2
    assert "tokenizer: /mini before, /other now" in capsys.readouterr().err
    bench.pages[page] = other
    assert bench(*tokenizer) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "the folder contains another bench" in said
    assert (bench.folder / "bench.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("page", "other", "why"),
    [
        ("/metrics", "process_start_time_seconds 2.0\n", "started: 1.0 at the start, 2.0 now"),
        ("/version", {"version": "0.33.0"}, "version: 0.32.0 at the start, 0.33.0 now"),
        ("/v1/models", {"data": [{"id": "mini", "root": "/pruned", "max_model_len": 512}]}, "root: "),
        ("/v1/models", {"data": [{"id": "other", "root": "/pruned", "max_model_len": 512}]}, "no model 'mini'"),
    ],
)
def test_replacing_a_server_during_the_bench_ends_it(bench, capsys, monkeypatch, page, other, why):
    bench.pages |= {"/metrics": "process_start_time_seconds 1.0\n", "/version": {"version": "0.32.0"}}
    own = Generator.block

    def block(self, order):
        if len(Generator.orders) == 5:  # two for the warm-up, A0, B0, B1
            bench.pages[page] = other
        return own(self, order)

    monkeypatch.setattr(Generator, "block", block)
    assert bench() == 1
    said = capsys.readouterr().err
    assert "server A changed during the bench" in said and why in said
    assert len((bench.folder / "bench.jsonl").read_text().splitlines()) == 1 + 3, "its new block does not count"
    assert not (bench.folder / "bench.json").exists() and Generator.ended


def test_missing_metrics_for_a_while_are_not_a_restart(bench, monkeypatch):
    bench.pages |= {"/metrics": "process_start_time_seconds 1.0\n", "/version": {"version": "0.32.0"}}
    own = Generator.block

    def block(self, order):
        if len(Generator.orders) == 5:
            del bench.pages["/metrics"], bench.pages["/version"]
        if len(Generator.orders) == 9:
            del bench.pages["/v1/models"]
        return own(self, order)

    monkeypatch.setattr(Generator, "block", block)
    assert bench() == 0


def test_a_server_that_hangs_costs_one_block_and_is_reported(bench, capsys):
    Generator.failing = "B"
    assert bench() == 1
    out, err = capsys.readouterr()
    outcome = json.loads(out)
    assert [order.name for order in Generator.orders] == ["A-1", "B-1"] * 2, "given up after its warm-up"
    assert outcome["headlines"] == []
    assert {row["arm"]: row["tokens_per_second"] for row in outcome["points"]} == {"B": None}
    assert "the block timed out after 90 s" in err


def test_a_server_that_dies_after_its_warm_up_is_given_up_after_two_blocks(bench, capsys):
    Generator.failing = tuple(f"B{turn}" for turn in range(6))
    assert bench("--concurrency", "1") == 1
    assert [order.name for order in Generator.orders] == ["A-1", "B-1", "A0", "B0", "B1"]
    rows = {row["arm"]: row for row in json.loads(capsys.readouterr().out)["points"]}
    assert rows["B"]["tokens_per_second"] is None
    assert rows["B"]["errors"] == {"the block timed out after 90 s": 2}


def test_a_failed_block_is_reported_and_the_others_are_measured(bench, capsys):
    Generator.failing = "B3"
    assert bench("--concurrency", "1") == 1
    outcome = json.loads(capsys.readouterr().out)
    rows = {row["arm"]: row for row in outcome["points"]}
    assert rows["A"]["failed"] == 0
    assert rows["B"]["failed"] == 1
    assert rows["B"]["tokens_per_second"] > 0
    assert outcome["headlines"] == [], "errors forbid a claim"


def test_emulated_servers_support_no_claim(bench, capsys):
    assert bench("--emulated") == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["headlines"] == []
    assert outcome["no_claim_because"] == "the server emulates its number format"
    assert "no claim: the server emulates" in (bench.folder / "bench.svg").read_text()
    # And a file of it does not forget.
    file = str(bench.folder / "bench.jsonl")
    assert run(["bench", "--import", file, "--against-results", file, "-o", str(bench.folder / "b"), "--json"]) == 0
    assert "emulates" in json.loads(capsys.readouterr().out)["no_claim_because"]


def test_a_missing_roofline_has_a_reason(bench, capsys):
    assert bench("--gpus", "8xB200", against=False) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["roofline"] == []
    assert "the checkpoint of A is not on this machine" in outcome["roofline_missing"]


def test_imported_results_make_a_table(tmp_path, capsys):
    file = str(RECORDED / "vllm_bench.json")
    assert run(["bench", "--import", file, "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "concurrency 2, 64 in / 16 out, imported" in out
    assert "39.10" in out
    assert "0/4" in out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "nothing to measure"),
        (["http://127.0.0.1:1"], "the server does not respond"),
        (["http://127.0.0.1:1", "--slo", "ttft=1"], "invalid latency target"),
        (["http://127.0.0.1:1", "--gpus", "8xB9"], "unknown GPU"),
        (["--import", "x.json", "--against", "http://127.0.0.1:1"], "--against alternates with URL"),
        (["--import", "x.json"], "cannot read these results"),
        (["http://127.0.0.1:1", "--timeout", "nan"], "nan is not a finite number"),
        (["http://127.0.0.1:1", "--timeout", "inf"], "inf is not in the range"),
        (["http://127.0.0.1:1", "--timeout", "1e30"], "1e+30 is not in the range"),
        (["http://127.0.0.1:1", "--timeout", "86400"], "the server does not respond"),
        (["http://127.0.0.1:1", "--timeout", "-1"], "-1"),
        (["http://127.0.0.1:1", "--blocks", "1000000000000"], "1000000000000"),
    ],
)
def test_invalid_options_are_refused(arguments, why, tmp_path, capsys):
    assert run(["bench", *arguments, "-o", str(tmp_path / "out")]) in (2, 3)
    assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_request_longer_than_the_servers_context_is_refused_before_any_load(bench, capsys):
    assert bench("--shape", "1k:8") == 2
    assert "the server's context is 512" in capsys.readouterr().err
