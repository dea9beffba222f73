"""Comparison of A and B: claims, and what rules them out."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from halfbyte.bench.records import Block, Request, read_records
from halfbyte.bench.report import failed_points, make_report, plot, sentences
from halfbyte.evidence.benchmark import LoadPoint

RECORDED = Path(__file__).parent / "recorded"
FAST, SLOW = LoadPoint(64, 10, 8), LoadPoint(64, 10, 1)
GPU = {"no_claim_because": "", "prefix_queries": 1000.0, "prefix_hits": 0.0}


def block(arm: str, turn: int, pace: float, point: LoadPoint = FAST, **server) -> Block:
    """A block with this many tokens per second per user."""
    gap = 1 / pace
    rows = tuple(Request(0.0, gap, 10 * gap, (gap,) * 9, 64, 10) for _ in range(point.concurrency))
    return Block(arm, point, turn, 10 * gap, rows, server={**GPU, **server})


def run(
    ratio: float, *, point: LoadPoint = FAST, seed: int = 0, noise: float = 0.03, blocks: int = 6, **server
) -> list[Block]:
    drawn = random.Random(seed)
    return [
        block(arm, turn, 50 * (ratio if arm == "A" else 1) * drawn.gauss(1, noise), point, **server)
        for turn in range(blocks)
        for arm in ("AB" if turn % 2 == 0 else "BA")
    ]


def report(blocks, **kinds):
    return make_report(blocks, {}, **{"design": "abba", "slo": {}, **kinds})


def test_a_claim_names_its_point_and_is_the_lower_bound():
    result = report(run(1.58) + run(1.1, point=SLOW, seed=1))
    said = result.headlines
    assert len(said) == 2, said
    assert "output tokens per second at concurrency 8, 64 in / 10 out" in said[0]
    one = result.comparisons[0]
    low = one.simultaneous.interval[0]
    assert low < one.individual.interval[0], "the best of several has the wider interval"
    assert f"at least {int(1000 * (low - 1)) / 10:g} % more" in said[0]
    assert "all 4 ratios together" in said[0]
    assert result.headlines == said


def test_a_slowdown_of_30_percent_is_found():
    result = report(run(1 / 1.3, noise=0.05))
    assert result.comparisons[0].individual.interval[1] < 1
    assert "less output tokens per second" in result.headlines[0]


def test_two_equal_servers_are_rarely_called_different():
    alarms = sum(bool(report(run(1.0, seed=seed)).headlines) for seed in range(200))
    assert alarms <= 17, "5 % of 200 is 10; 17 or more happen in one of 30 cases"
    assert alarms >= 1, "a test that never alarms has no level"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"no_claim_because": "the server computes on a CPU"}, "the server computes on a CPU"),
        ({"no_claim_because": "the server emulates its number format"}, "emulates"),
        ({"prefix_hits": 500.0}, "prefix cache hit rate is 50%"),
    ],
)
def test_reasons_against_a_claim(change, why):
    result = report(run(1.58, **change))
    assert result.headlines == ()
    assert why in result.comparisons[0].sentence
    assert "no claim" in result.comparisons[0].sentence


def test_errors_and_too_few_blocks_forbid_a_claim():
    blocks = run(1.58)
    broken = replace(blocks[0].requests[0], error="HTTP 500")
    blocks[0] = replace(blocks[0], requests=(broken, *blocks[0].requests[1:]))
    result = report(blocks)
    assert result.headlines == ()
    assert "1 of 48 requests of A failed: HTTP 500" in result.comparisons[0].individual.no_claim_because
    assert result.comparisons[0].individual.units == (5, 5), "the pair is left out"
    assert "5 blocks per arm" in report(run(1.58, blocks=5)).comparisons[0].individual.no_claim_because


def test_unknown_machines_support_no_claim_without_gpus_option():
    blocks = [replace(one, server={}) for one in run(1.58)]
    assert report(blocks).headlines == ()
    assert "the hardware of these results is unknown" in report(blocks).no_claim_because
    assert report(blocks, gpus="8xB200").headlines
    assert report(blocks, gpus="8xB200", emulated=True).headlines == ()


def test_one_after_the_other_counts_server_starts():
    blocks = run(1.58, server_started=1.0)
    result = report(blocks, design="sequential")
    assert "1 and 1 server starts" in result.comparisons[0].individual.no_claim_because
    more = [replace(one, server={**one.server, "server_started": 2.0}) for one in run(1.5, seed=3)]
    again = report(blocks + more, design="sequential").comparisons[0].individual
    assert again.units == (2, 2)
    assert "drift and deployment variance are not controlled" in again.sentence()


def test_a_server_that_stalls_has_no_ratio_but_a_reason():
    dead = [Block("B", FAST, turn, 0.0, (), failed="no answer", server=GPU) for turn in range(6)]
    result = report([one for one in run(1.0) if one.arm == "A"] + dead)
    assert result.comparisons == ()
    assert [one.arm for one in failed_points(result)] == ["B"]
    assert any(level == "bad" and "6x no answer" in said for level, said in sentences(result))


def test_a_slowing_server_is_reported():
    blocks = [block("A", turn, 50 * 0.9**turn * (1 + 0.001 * (turn % 2))) for turn in range(6)]
    result = report(blocks)
    assert result.points[0].drift == pytest.approx(0.9**5 - 1, abs=0.01)
    assert any("changed by -41% over the run" in said for _, said in sentences(result))
    assert report([one for one in run(1.0) if one.arm == "A"]).points[0].drift is None


def test_the_picture_has_every_point_and_escapes_names():
    result = report(run(1.58) + run(1.1, point=SLOW, seed=1))
    svg = plot(result.points, "no claim: <CPU>")
    assert svg.count("<circle") == 4
    assert svg.count("<polyline") == 2
    assert "&lt;CPU&gt;" in svg
    assert plot((), "") is None


def recorded(name: str) -> list[Block]:
    """Blocks of a real vLLM, A against itself or through the proxy of tests/live (30 % slower)."""
    return read_records(RECORDED / f"{name}.jsonl")[1]


def test_real_blocks_of_a_server_behind_a_slow_proxy():
    node, user = (one.individual for one in report(recorded("slow")).comparisons)
    assert node.ratio == pytest.approx(1.30, abs=0.005)
    assert node.interval == pytest.approx((1.17, 1.45), abs=0.01)
    assert user.interval[0] > 1
    assert node.headline is None, "measured on a CPU"
    free = [replace(one, server=GPU) for one in recorded("slow")]
    assert report(free).headlines[0].startswith("A gives at least 1")


def test_real_blocks_of_a_server_against_itself():
    free = [replace(one, server=GPU) for one in recorded("same")]
    result = report(free)
    assert result.headlines == ()
    assert all("no significant difference" in one.individual.no_claim_because for one in result.comparisons)


def test_20_comparisons_of_real_equal_blocks():
    """Both arms of the A/A run are one server: their blocks, shuffled into 20 pairings, alarm about once in 20."""
    speeds = {one.turn: [] for one in recorded("same")}
    for one in recorded("same"):
        speeds[one.turn].append(one)
    alarms = 0
    for seed in range(20):
        drawn = random.Random(seed)
        blocks = []
        for turn, pair in speeds.items():
            a, b = drawn.sample(pair, 2)
            blocks += [replace(a, arm="A", turn=turn, server=GPU), replace(b, arm="B", turn=turn, server=GPU)]
        alarms += any(one.individual.headline for one in report(blocks).comparisons)
    assert alarms <= 3, "4 or more happen in 2 of 100 cases at 5 %"
