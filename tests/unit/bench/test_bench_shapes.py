"""Parsing of shapes, request counts and latencies, and invalid values."""

import pytest

from halfbyte.bench.records import points, targets
from halfbyte.errors import UsageError
from halfbyte.evidence.benchmark import LoadPoint


def test_every_combination_once():
    result = points(["8k:1k", "512:128", "512:128"], "1, 8", "random,json")
    assert result[:2] == [LoadPoint(8192, 1024, 1), LoadPoint(8192, 1024, 8)]
    assert len(result) == 2 * 2 * 2
    assert str(result[0]) == "concurrency 1, 8k in / 1k out"
    assert str(result[-1]) == "concurrency 8, 512 in / 128 out, json"
    assert result[0].context == 8704


@pytest.mark.parametrize("shape", ["8k", "0:1", "8k:", "a:b", "1m:1", "-1:5", "", "1:" + "9" * 5000])
def test_no_shape(shape):
    with pytest.raises(UsageError, match="invalid shape"):
        points([shape], "1", "random")


@pytest.mark.parametrize("text", ["0", "1,,2", "a", "", "1.5", "-1"])
def test_no_concurrency(text):
    with pytest.raises(UsageError, match="invalid concurrency"):
        points(["1:1"], text, "random")


def test_no_content():
    with pytest.raises(UsageError, match="did you mean 'prose'"):
        points(["1:1"], "1", "pros")


def test_targets():
    assert targets("ttft=1s, tpot=50ms,e2e=2.5s") == {"ttft": 1.0, "tpot": 0.05, "e2e": 2.5}
    assert targets(None) == {}
    for wrong in ("ttft", "ttft=1", "ttft=1h", "pace=1s", f"ttft={'9' * 400}s", "ttft=nans"):
        with pytest.raises(UsageError):
            targets(wrong)
