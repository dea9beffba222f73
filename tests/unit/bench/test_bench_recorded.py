"""One real block of `vllm bench serve` and two real snapshots of /metrics: our figures equal vLLM's."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from halfbyte.bench.records import Block, open_records, read_records, requests_of, whole_pairs
from halfbyte.bench.summary import steady, summarize
from halfbyte.endpoint.metrics_page import between, read_page
from halfbyte.errors import UsageError
from halfbyte.evidence.benchmark import LoadPoint

RECORDED = Path(__file__).parent / "recorded"
POINT = LoadPoint(64, 16, 2)


@pytest.fixture
def result() -> dict:
    return json.loads((RECORDED / "vllm_bench.json").read_text())


@pytest.fixture
def block(result) -> Block:
    return Block("A", POINT, 0, result["duration"], requests_of(result, POINT), server={"no_claim_because": ""})


def test_rates_and_percentiles_are_vllms_own(block, result):
    outcome = summarize([block], {})
    assert outcome.requests_per_second == pytest.approx(result["request_throughput"], rel=1e-12)
    assert outcome.tokens_per_second == pytest.approx(result["output_throughput"], rel=1e-12)
    for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl")):
        spread = getattr(outcome, ours)
        assert spread["p50"] * 1000 == pytest.approx(result[f"median_{theirs}_ms"], rel=1e-9)
        assert spread["p99"] * 1000 == pytest.approx(result[f"p99_{theirs}_ms"], rel=1e-9)
        assert spread["mean"] * 1000 == pytest.approx(result[f"mean_{theirs}_ms"], rel=1e-9)
    assert outcome.failed == 0
    assert outcome.no_claim_because == ""
    assert outcome.error_rate == 0


def test_goodput_counts_requests_within_every_target(block):
    ttfts = sorted(request.ttft for request in block.requests)
    outcome = summarize([block], {"ttft": ttfts[1]})
    assert outcome.goodput_share == 0.5
    assert outcome.goodput_per_second == pytest.approx(2 / block.seconds)
    late = summarize([block], {"ttft": ttfts[1], "tpot": 1e-6})
    assert (late.goodput_share, late.goodput_per_second) == (0, 0), (
        "answers that are all too late are no missing figure"
    )
    dead = Block("A", POINT, 1, 0.0, (), failed="gone")
    assert summarize([dead], {"ttft": 1.0}).goodput_per_second is None
    assert summarize([block], {}).goodput_per_second is None


def test_lengths_other_than_asked_are_errors(result):
    result["output_lens"][1] = 15
    result["input_lens"][2] = 65
    result["errors"][3] = "Traceback ...\nOSError: [Errno 104] Connection reset by peer\n"
    outcome = [request.error for request in requests_of(result, POINT)]
    assert outcome == [
        "",
        "received 15 output tokens instead of 16",
        "the server counted 65 tokens in a prompt of 64",
        "OSError: [Errno 104] Connection reset by peer",
    ]
    result["output_lens"][0], result["errors"][0] = 0, ""  # a status without a reason leaves no words
    assert requests_of(result, POINT)[0].error == "failed without an error message"


def test_a_reason_does_not_repeat_the_key(result, monkeypatch):
    monkeypatch.setenv("HALFBYTE_API_KEY", "sk-very-secret")
    result["errors"][0] = "HTTP 401: Bearer sk-very-secret is not known"
    assert requests_of(result, POINT)[0].error == "HTTP 401: Bearer *** is not known"


def test_a_failed_block_is_an_error_not_zero_speed(block):
    dead = Block("A", POINT, 1, 0.0, (), failed="the block timed out after 90 s")
    outcome = summarize([dead], {})
    assert outcome.tokens_per_second is None
    assert outcome.requests_per_second is None
    assert outcome.error_rate == 1
    assert outcome.no_claim_because.startswith("1 of 1 requests of A failed: the block timed out")
    both = summarize([block, dead], {})
    assert both.tokens_per_second == summarize([block], {}).tokens_per_second
    assert (both.failed, both.requests) == (1, 5)


def test_steady_time_is_between_the_first_answers_and_the_last_request():
    from halfbyte.bench.records import Request

    # One user, three requests of 2 s, a token at 1, 1.5 and 2 s each: between 1 and 4 s are 5 tokens after the first.
    rows = tuple(Request(2.0 * at, 1.0, 2.0, (0.5, 0.5), 4, 3) for at in range(3))
    one = Block("A", LoadPoint(4, 3, 1), 0, 6.0, rows)
    assert steady([one]) == pytest.approx(5 / 3)
    assert steady([replace(one, requests=rows[:1])]) is None


def test_a_busy_client_or_a_warm_prefix_cache_forbids_claims(block):
    assert "95% of a core" in summarize([replace(block, processor_share=0.95)], {}).no_claim_because
    known = {"prefix_queries": 100.0, "prefix_hits": 40.0}
    assert "prefix cache hit rate is 40%" in summarize([replace(block, server=known)], {}).no_claim_because


def test_metrics_of_a_real_server():
    before, after = (read_page((RECORDED / name).read_text()) for name in ("metrics.txt", "metrics_after.txt"))
    assert before.kv_tokens == 77_664 == 4_854 * 16
    assert before.cache["enable_prefix_caching"] == "False"
    outcome = between(before, after)
    assert outcome["generated_tokens"] == 128
    assert outcome["prefix_hit_share"] is None, "no queries, so no share of them"
    assert outcome["preemptions"] == 0
    assert outcome["draft_tokens"] is None, "no draft here"
    assert after.kv_use == 0.0
    assert between(None, after)["generated_tokens"] is None
    again = replace(after, started=1.0)
    assert between(before, again)["generated_tokens"] is None, "another start counts from nothing"


def test_counters_of_several_engines_are_added():
    page = 'vllm:num_preemptions_total{engine="0"} 2.0\nvllm:num_preemptions_total{engine="1"} 3\nnonsense\n# HELP x\n'
    assert read_page(page).counters == {"preemptions": 5.0}


def test_invalid_metric_values_are_unknown():
    page = read_page("vllm:kv_cache_usage_perc NaN\nvllm:num_preemptions_total +Inf\nprocess_start_time_seconds nan\n")
    assert (page.kv_use, page.counters, page.started) == (None, {}, None)


SETTINGS = {"servers": {"A": 1, "B": 2}, "blocks": 6}


def test_blocks_are_kept_over_a_kill(tmp_path, block):
    records = open_records(tmp_path, SETTINGS)
    for turn in range(2):
        for arm in "AB":
            records.add(replace(block, arm=arm, turn=turn))
    path = tmp_path / "bench.jsonl"
    path.write_text(path.read_text() + '{"arm": "A", "poi')  # killed while it wrote
    assert open_records(tmp_path, SETTINGS).blocks == records.blocks
    assert read_records(path)[1] == records.blocks, "written anew without the torn line"


def test_half_a_pair_is_measured_again_and_failures_stay(tmp_path, block):
    records = open_records(tmp_path, SETTINGS)
    failed = Block("B", POINT, 0, 0.0, (), failed="gone")
    for one in (block, failed, replace(block, turn=1), replace(block, turn=1, arm="B"), replace(block, turn=2)):
        records.add(one)
    kept = open_records(tmp_path, SETTINGS).blocks
    assert [(one.arm, one.turn, one.failed) for one in kept] == [("B", 0, "gone"), ("A", 1, ""), ("B", 1, "")]


def test_a_repeated_turn_counts_once(tmp_path, block):
    records = open_records(tmp_path, SETTINGS)
    failed = Block("B", POINT, 0, 0.0, (), failed="gone")
    again = replace(block, seconds=2 * block.seconds)
    for one in (failed, block, replace(block, arm="B"), again, replace(again, arm="B")):
        records.add(one)
    once = [failed, block, replace(block, arm="B")]
    assert whole_pairs(records.blocks, "AB") == once[1:]
    assert read_records(tmp_path / "bench.jsonl")[1] == once
    assert open_records(tmp_path, SETTINGS).blocks == once


def test_another_bench_in_the_folder_is_left_alone(tmp_path, block):
    open_records(tmp_path, SETTINGS).add(block)
    before = (tmp_path / "bench.jsonl").read_bytes()
    with pytest.raises(UsageError, match="blocks: 6 before, 7 now"):
        open_records(tmp_path, SETTINGS | {"blocks": 7})
    assert (tmp_path / "bench.jsonl").read_bytes() == before


def test_a_broken_line_in_the_middle_is_an_error(tmp_path, block):
    open_records(tmp_path, SETTINGS).add(block)
    path = tmp_path / "bench.jsonl"
    path.write_text(path.read_text().replace("{", "", 1))
    with pytest.raises(UsageError, match="line 1 is not a valid block"):
        read_records(path)
