"""Result files with impossible or duplicate measurements: rejected with one error each."""

import json
import math
import shutil
from pathlib import Path

import pytest

from halfbyte.bench.importers import read_results
from halfbyte.cli.main import run
from halfbyte.errors import UsageError

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def result() -> dict:
    return json.loads((RECORDED / "vllm_bench.json").read_text())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"duration": math.nan}, "the duration is nan, not a time"),
        ({"duration": math.inf}, "the duration is inf, not a time"),
        ({"duration": -5.0}, "the duration is -5.0, not a time"),
        ({"duration": 0}, "the duration is 0, too short to be a measured time"),
        ({"duration": 1e-300}, "the duration is 1e-300"),
        ({"duration": "12"}, "the duration is '12', not a time"),
        ({"duration": None}, "the duration is None, not a time"),
        ({"duration": True}, "the duration is True, not a time"),
        ({"max_concurrency": "8"}, "the concurrency is '8', not an integer of at least 1"),
        ({"max_concurrency": 2.5}, "the concurrency is 2.5"),
        ({"max_concurrency": -1}, "the concurrency is -1"),
        ({"ttfts": [-1.0] * 4}, "the first token of request 1 is -1.0, not a time"),
        ({"ttfts": ["a"] * 4}, "the first token of request 1 is 'a', not a time"),
        ({"ttfts": [0.01, 0.01, math.nan, 0.01]}, "the first token of request 3 is nan"),
        ({"ttfts": [99.0] * 4}, "the first token of request 1 arrived after 99 s"),
        ({"latencies": [0.0] * 4}, "the latency of request 1 is 0.0"),
        ({"itls": [[0.1, -0.1]] * 4}, "an inter-token latency of request 1 is -0.1"),
        ({"itls": [["x"]] * 4}, "an inter-token latency of request 1 is 'x'"),
        ({"itls": [None] * 4}, "a value of the wrong type"),
        ({"start_times": [1.0, 2.0, math.inf, 3.0]}, "the start time of request 3 is inf"),
        ({"start_times": ["1"] * 4}, "a value of the wrong type"),
        ({"input_lens": ["64"] * 4}, "the prompt length of request 1 is '64'"),
        ({"output_lens": [16, 16, -16, 16]}, "the output length of request 3 is -16"),
        ({"output_lens": [10**400] * 4}, "the output length of request 1"),
        ({"ttfts": [0.1] * 3}, "there are 4 start_times, but 3 ttfts"),
        ({"ttfts": 0.1}, "a value of the wrong type"),
    ],
)
def test_nonsense_in_vllms_file(tmp_path, capsys, result, change, why):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(result | change))
    assert run(["bench", "--import", str(path), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"output_tokens": 12', '"output_tokens": Infinity', "cannot read"),
        ('"output_tokens": 12', '"output_tokens": NaN', "cannot read"),
        ('"streams": 2', '"streams": -2', "the concurrency is -2"),
        ('"request_start": ', '"request_start": -1', "the time to the first token of request"),
    ],
)
def test_nonsense_in_guidellms_file(tmp_path, old, new, why):
    path = tmp_path / "a.json"
    text = json.dumps(json.loads((RECORDED / "guidellm.json").read_text()))
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=why):
        read_results(path, "A")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("request_latency", math.nan, "the latency of request 1 is nan"),
        ("time_to_first_token", -3, "the time to the first token of request 1 is -0.003"),
        ("time_to_first_token", "soon", "cannot read"),
        ("usage_completion_tokens", math.inf, "cannot read"),
    ],
)
def test_nonsense_in_aiperfs_file(tmp_path, name, value, why):
    rows = [json.loads(line) for line in (RECORDED / "aiperf.jsonl").read_text().splitlines()]
    for row in rows:
        row["metrics"][name]["value"] = value
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UsageError, match=why):
        read_results(path, "A")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seconds": math.nan}, "the duration is nan"),
        ({"server": {"kv_use_peak": math.nan}}, "not finite"),
        ({"gpus": {"gpus": 1, "watts": math.inf}}, "not finite"),
        ({"processor_share": math.inf}, "not finite"),
        ({"turn": "1"}, "the turn is '1'"),
    ],
)
def test_nonsense_in_our_own_file(tmp_path, change, why):
    first, *lines = (RECORDED / "same.jsonl").read_text().splitlines()
    ours = next(json.loads(line) for line in lines if json.loads(line)["arm"] == "A")
    path = tmp_path / "bench.jsonl"
    path.write_text(f"{first}\n{json.dumps(ours | change)}\n")
    with pytest.raises(UsageError, match=why):
        read_results(path, "A")


def test_duplicate_results_are_refused(tmp_path, capsys, result):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(result))
    shutil.copy(file, tmp_path / "copy.json")
    (tmp_path / "link.json").symlink_to(file)
    (tmp_path / "pretty.json").write_text(json.dumps(result, indent=2))
    out = str(tmp_path / "out")
    for other in ("a.json", "./a.json", "copy.json", "link.json", "pretty.json"):
        twice = ["--import", str(file), "--import", f"{tmp_path}/{other}"]
        assert run(["bench", *twice, "-o", out]) == 2
        assert "duplicate results" in capsys.readouterr().err
        against = [option.replace("--import", "--against-results") for option in twice]
        assert run(["bench", "--import", str(file), *against, "-o", out]) == 2
        assert "B: " in capsys.readouterr().err
    again = tmp_path / "again.json"
    again.write_text(json.dumps(result | {"duration": result["duration"] + 1e-9}))
    assert run(["bench", "--import", str(file), "--import", str(again), "-o", out]) == 0
