"""Real files of other load generators; the errors in them follow their classes."""

import json
from pathlib import Path

import pytest

from halfbyte.bench.importers import at_once, read_results
from halfbyte.bench.records import Request
from halfbyte.bench.summary import summarize
from halfbyte.cli.main import run
from halfbyte.errors import UsageError

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
    outcome = summarize([block], {})
    assert outcome.ttft["p50"] == pytest.approx(0.5)
    assert outcome.tpot["p50"] == pytest.approx(0.1)
    assert outcome.tokens_per_second == pytest.approx(15 / 1.9)
    assert (outcome.failed, outcome.requests, outcome.errors) == (1, 4, {"HTTP 503": 1})


@pytest.mark.parametrize(
    ("strategy", "point"),
    [
        ({"type_": "synchronous"}, "concurrency 1, 128 in / 5 out, imported"),
        ({"type_": "concurrent", "streams": 4}, "concurrency 4, 128 in / 5 out, imported"),
        ({"type_": "constant", "rate": 10.0}, "concurrency 1, 128 in / 5 out, imported, constant load of 10 a second"),
        ({"type_": "throughput", "max_concurrency": 512}, "concurrency 3, 128 in / 5 out, imported, throughput load"),
    ],
)
def test_a_load_of_guidellm_is_what_it_was(tmp_path, strategy, point):
    apart = 0.0 if strategy["type_"] == "throughput" else 1.0
    requests = {"successful": [guidellm_request(10 + apart * at) for at in range(3)], "errored": []}
    path = tmp_path / "guide.json"
    path.write_text(json.dumps({"benchmarks": [{"config": {"strategy": strategy}, "requests": requests}]}))
    (block,) = read_results(path, "A")
    assert str(block.point) == point


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
    outcome = summarize([block], {})
    assert outcome.tpot["p50"] == pytest.approx(0.1), "the server's count of tokens, not the client's"
    assert outcome.itl["p50"] == pytest.approx(0.1)
    assert outcome.errors == {"boom": 1}
    assert outcome.requests == 3, "without the warm-up"
    assert block.doubt == ""
    del rows[1]["metrics"]["usage_completion_tokens"]
    path.write_text("\n".join(map(json.dumps, rows[:2])))
    (block,) = read_results(path, "A")
    assert block.point.output == 9
    assert "aiperf counted tokens with its own tokenizer" in summarize([block], {}).no_claim_because


def test_vllms_own_file():
    (block,) = read_results(RECORDED / "vllm_bench.json", "A")
    result = json.loads((RECORDED / "vllm_bench.json").read_text())
    assert (block.point.prompt, block.point.output, block.point.concurrency) == (64, 16, 2)
    assert summarize([block], {}).tokens_per_second == pytest.approx(result["output_throughput"])


def test_a_rate_in_vllms_file_is_another_load(tmp_path):
    result = json.loads((RECORDED / "vllm_bench.json").read_text()) | {"max_concurrency": None}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(result))
    assert str(read_results(path, "A")[0].point) == "concurrency 4, 64 in / 16 out, imported"
    path.write_text(json.dumps(result | {"request_rate": 2.5}))
    said = "concurrency 2, 64 in / 16 out, imported, 2.5 requests a second"
    assert str(read_results(path, "A")[0].point) == said, "two were under way at once"


def vllm_file(path: Path, pace: float, *, prompt: int = 128, outputs: tuple = (64,) * 8) -> str:
    """A file of 8 sequential requests; each pace gives a different file."""
    latencies = [count / pace for count in outputs]
    starts = [sum(latencies[:at]) for at in range(8)]
    result = {"max_concurrency": 1, "num_prompts": 8, "duration": sum(latencies), "start_times": starts,
              "ttfts": [1 / pace] * 8, "latencies": latencies, "itls": [[1 / pace] * (count - 1) for count in outputs],
              "input_lens": [prompt] * 8, "output_lens": list(outputs), "errors": [""] * 8}  # fmt: skip
    path.write_text(json.dumps(result))
    return str(path)


@pytest.fixture
def against(tmp_path, capsys):
    """Return a function that compares files of A, 50 % faster, with files of B, on GPUs, and returns the report."""

    def call(**of_a) -> dict:
        options = []
        for at in range(3):
            options += ["--import", vllm_file(tmp_path / f"a{at}.json", 60 + at / 10, **of_a)]
            options += ["--against-results", vllm_file(tmp_path / f"b{at}.json", 40 + at / 10)]
        assert run(["bench", *options, "--gpus", "8xB200", "-o", str(tmp_path / "out")]) == 0
        call.said = "".join(capsys.readouterr())
        return json.loads((tmp_path / "out" / "bench.json").read_text())

    return call


def test_answers_of_other_lengths_support_no_claim(against):
    assert against()["headlines"]
    assert "tokens, so the servers" not in against.said
    outcome = against(outputs=(64,) * 5 + (16,) * 3)
    assert outcome["headlines"] == []
    assert "output lengths vary from 16 to 64 tokens" in outcome["points"][0]["no_claim_because"]
    assert "A at concurrency 1, 128 in / 64 out, imported: output lengths vary from 16 to 64 tokens" in against.said


def test_points_of_one_side_only_are_reported(against):
    assert against()["not_compared"] == []
    outcome = against(prompt=129)
    assert outcome["comparisons"] == []
    assert outcome["not_compared"] == [
        "concurrency 1, 129 in / 64 out, imported: not compared, because only A was measured here",
        "concurrency 1, 128 in / 64 out, imported: not compared, because only B was measured here",
    ]
    assert outcome["not_compared"][0] in against.said


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.json", "{", "cannot read"),
        ("a.json", "[1]", "unknown result format"),
        ("a.json", '{"benchmarks": []}', "no requests"),
        ("a.json", '{"benchmarks": [{}]}', "are incomplete: KeyError"),
        ("a.jsonl", "", "cannot read"),
        ("a.json", '{"ttfts": [], "start_times": []}', "are incomplete"),
    ],
)
def test_invalid_result_files_are_refused(tmp_path, name, text, why):
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
    """guidellm 0.8.1 against a small server: 6 requests, 2 concurrent; unused parts were removed from the file."""
    (block,) = read_results(RECORDED / "guidellm.json", "A")
    said = json.loads((RECORDED / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    outcome = summarize([block], {})
    assert (outcome.requests, outcome.failed) == (6, 0)
    assert str(block.point) == "concurrency 2, 32 in / 12 out, imported"
    assert outcome.ttft["mean"] * 1000 == pytest.approx(said["time_to_first_token_ms"]["successful"]["mean"], rel=1e-6)
    assert outcome.tpot["mean"] * 1000 == pytest.approx(said["inter_token_latency_ms"]["successful"]["mean"], rel=1e-6)


def test_a_real_file_of_aiperf_has_the_percentiles_that_aiperf_says():
    """aiperf 0.13.0 with --use-server-token-count against the same server; its own sums are in the other file."""
    (block,) = read_results(RECORDED / "aiperf.jsonl", "A")
    said = json.loads((RECORDED / "aiperf_summary.json").read_text())
    outcome = summarize([block], {})
    assert (outcome.requests, outcome.failed) == (6, 0)
    assert str(block.point) == "concurrency 2, 32 in / 12 out, imported"
    for ours, theirs in (("ttft", "time_to_first_token"), ("e2e", "request_latency"), ("tpot", "inter_token_latency")):
        for at in ("p50", "p90", "p99"):
            assert getattr(outcome, ours)[at] * 1000 == pytest.approx(said[theirs][at], rel=1e-6), (ours, at)
