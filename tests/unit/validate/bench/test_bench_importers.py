"""Files of other load generators, real ones; the errors in them are written after their classes."""

import json
from pathlib import Path

import pytest

from halfbyte.errors import UsageError
from halfbyte.validate.bench.importers import at_once, read_results
from halfbyte.validate.bench.records import Request
from halfbyte.validate.bench.summary import summarize

RECORDED = Path(__file__).parent / "recorded"


def guidellm_request(start: float, **more) -> dict:
    """One of guidellm 0.8's GenerativeRequestStats: 5 tokens, the first after 0.5 s, one each 0.1 s."""
    timings = {
        "request_start": start,
        "first_token_iteration": start + 0.5,
        "last_token_iteration": start + 0.9,
        "token_iterations": 5,
        "request_end": start + 0.95,
        "resolve_start": start - 0.01,
        "resolve_end": start + 1,
    }
    return {"info": {"timings": timings, "error": None}, "prompt_tokens": 128, "output_tokens": 5, **more}


def test_guidellm(tmp_path):
    failed = {"info": {"timings": {"request_start": 11.0, "resolve_end": 11.2}, "error": "HTTP 503"}}
    benchmark = {
        "config": {"strategy": {"type_": "concurrent", "streams": 2}},
        "requests": {
            "successful": [guidellm_request(10.0), guidellm_request(10.0), guidellm_request(11.0)],
            "incomplete": [guidellm_request(12.0)],
            "errored": [failed],
        },
    }
    path = tmp_path / "guide.json"
    path.write_text(json.dumps({"metadata": {"version": 2}, "config": {}, "benchmarks": [benchmark]}))
    (block,) = read_results(path, "B")
    assert (block.arm, block.point.prompt, block.point.output, block.point.concurrency) == ("B", 128, 5, 2)
    found = summarize([block], {})
    assert found.ttft["p50"] == pytest.approx(0.5)
    assert found.tpot["p50"] == pytest.approx(0.1)
    assert found.tokens_per_second == pytest.approx(15 / 1.9)
    assert (found.failed, found.requests, found.errors) == (1, 4, {"HTTP 503": 1})


def aiperf_record(start_ns: int, **more) -> dict:
    """One of aiperf 0.13's MetricRecordInfo."""
    return {
        "metadata": {
            "request_start_ns": start_ns,
            "request_end_ns": start_ns + 900_000_000,
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": {
            "time_to_first_token": {"value": 500.0, "unit": "ms"},
            "request_latency": {"value": 900.0, "unit": "ms"},
            "inter_chunk_latency": {"value": [100.0] * 4, "unit": "ms"},
            "output_sequence_length": {"value": 9, "unit": "tokens"},
            "usage_completion_tokens": {"value": 5, "unit": "tokens"},
            "input_sequence_length": {"value": 128, "unit": "tokens"},
        },
        "error": None,
        **more,
    }


def test_aiperf(tmp_path):
    warm = aiperf_record(0)
    warm["metadata"]["benchmark_phase"] = "warmup"
    failed = {**aiperf_record(2_000_000_000), "error": {"code": 500, "message": "boom"}}
    rows = [warm, aiperf_record(1_000_000_000), aiperf_record(1_000_000_001), failed]
    path = tmp_path / "profile_export.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    (block,) = read_results(path, "A")
    assert (block.point.prompt, block.point.output, block.point.concurrency) == (128, 5, 2)
    found = summarize([block], {})
    assert found.tpot["p50"] == pytest.approx(0.1), "the server's count of tokens, not the client's"
    assert found.itl["p50"] == pytest.approx(0.1)
    assert found.errors == {"boom": 1}
    assert found.requests == 3, "without the warm-up"


def test_vllms_own_file():
    (block,) = read_results(RECORDED / "vllm_bench.json", "A")
    result = json.loads((RECORDED / "vllm_bench.json").read_text())
    assert (block.point.prompt, block.point.output, block.point.concurrency) == (64, 16, 2)
    assert summarize([block], {}).tokens_per_second == pytest.approx(result["output_throughput"])


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.json", "{", "cannot read"),
        ("a.json", "[1]", "nobody knows"),
        ("a.json", '{"benchmarks": []}', "no requests"),
        ("a.json", '{"benchmarks": [{}]}', "lack something: KeyError"),
        ("a.jsonl", "", "cannot read"),
        ("a.json", '{"ttfts": [], "start_times": []}', "lack something"),
    ],
)
def test_what_is_no_result(tmp_path, name, text, why):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match=why):
        read_results(path, "A")
    with pytest.raises(UsageError, match="cannot read"):
        read_results(tmp_path / "absent.json", "A")


def test_requests_at_the_same_time():
    def one(start: float) -> Request:
        return Request(start, 0.1, 1.0, (), 1, 1)

    assert at_once([one(0), one(0.5), one(1.0), one(3)]) == 2


def test_a_real_file_of_guidellm_has_the_medians_that_guidellm_says():
    """guidellm 0.8.1 against a small server: 6 requests, 2 at once; what is not read was cut out of the file."""
    (block,) = read_results(RECORDED / "guidellm.json", "A")
    said = json.loads((RECORDED / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    found = summarize([block], {})
    assert (found.requests, found.failed) == (6, 0)
    assert str(block.point) == "concurrency 2, 32 in / 12 out, imported"
    assert found.ttft["mean"] * 1000 == pytest.approx(said["time_to_first_token_ms"]["successful"]["mean"], rel=1e-6)
    assert found.tpot["mean"] * 1000 == pytest.approx(said["inter_token_latency_ms"]["successful"]["mean"], rel=1e-6)


def test_a_real_file_of_aiperf_has_the_percentiles_that_aiperf_says():
    """aiperf 0.13.0 with --use-server-token-count against the same server; its own sums are in the other file."""
    (block,) = read_results(RECORDED / "aiperf.jsonl", "A")
    said = json.loads((RECORDED / "aiperf_summary.json").read_text())
    found = summarize([block], {})
    assert (found.requests, found.failed) == (6, 0)
    assert str(block.point) == "concurrency 2, 32 in / 12 out, imported"
    for ours, theirs in (("ttft", "time_to_first_token"), ("e2e", "request_latency"), ("tpot", "inter_token_latency")):
        for at in ("p50", "p90", "p99"):
            assert getattr(found, ours)[at] * 1000 == pytest.approx(said[theirs][at], rel=1e-6), (ours, at)
