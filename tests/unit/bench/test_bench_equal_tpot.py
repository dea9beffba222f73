"""A against B at equal speed per user: interpolated between measured points only."""

import random

import pytest

from halfbyte.bench.compare import at_tpot, equal_tpot
from halfbyte.bench.records import Block, Request
from halfbyte.bench.report import make_report
from halfbyte.evidence.benchmark import LoadPoint

CURVE = [(0.25, 400.0), (0.125, 100.0), (0.5, 800.0)]  # seconds for a token, tokens a second


def test_between_two_points_and_on_them():
    assert at_tpot(CURVE, 0.1875) == 250
    assert at_tpot(CURVE, 0.375) == 600
    assert [at_tpot(CURVE, tpot) for tpot, _ in CURVE] == [400, 100, 800]


@pytest.mark.parametrize("tpot", [0.1249, 0.5001, 0, 1])
def test_curves_are_not_extrapolated(tpot):
    assert at_tpot(CURVE, tpot) is None
    assert at_tpot(CURVE[:1], 0.25) is None
    assert at_tpot([], 0.020) is None


def blocks(users_and_paces: dict[int, float], arm: str, turns: int = 6, content: str = "random", noise: float = 0.01):
    """Blocks of a server with this many tokens per second per user, and the total of the node."""
    drawn = random.Random(arm)
    for turn in range(turns):
        for users, pace in users_and_paces.items():
            gap = 1 / (pace * drawn.gauss(1, noise))
            rows = tuple(Request(0.0, gap, 10 * gap, (gap,) * 9, 64, 10) for _ in range(users))
            point = LoadPoint(64, 10, users, content)
            yield Block(arm, point, turn, 10 * gap, rows, server={"no_claim_because": ""})


def test_a_ratio_by_hand():
    measured = [*blocks({4: 100.0, 16: 45.0}, "A"), *blocks({4: 52.0, 16: 25.0}, "B")]
    result = make_report(measured, {}, design="abba", slo={})
    (one,) = result.equal_tpot
    # A has 10 to 22.2 ms per token and 400 to 720 tokens a second, B 19.2 to 40 ms and 208 to 400: both reach 20.67 ms.
    assert one.tpot == pytest.approx(0.020672, rel=0.01)
    assert one.speedup.ratio == pytest.approx((400 + 320 * 10.672 / 12.222) / (208 + 192 * 1.441 / 20.769), rel=0.03)


def test_a_server_twice_as_fast_at_every_pace_has_its_ratio_and_interval():
    a = {1: 100.0, 2: 90.0, 4: 80.0, 8: 60.0}
    b = {1: 95.0, 2: 80.0, 4: 60.0, 8: 30.0}
    (one,) = equal_tpot([*blocks(a, "A"), *blocks(b, "B")], "")
    assert 1 / 95 <= one.tpot <= 1 / 60
    # By the straight lines: A between 2 and 8 users, B between 1 and 4.
    expected = at_tpot([(1 / p, u * p) for u, p in a.items()], one.tpot) / at_tpot(
        [(1 / p, u * p) for u, p in b.items()], one.tpot
    )
    assert one.speedup.ratio == pytest.approx(expected, rel=0.05)
    low, high = one.speedup.interval
    assert low < expected < high and one.speedup.units == (6, 6)
    assert "ms per token" in one.sentence and one.speedup.headline


def test_reasons_against_a_claim_apply_at_equal_pace():
    a, b = {1: 100.0, 4: 50.0}, {1: 90.0, 4: 45.0}
    (one,) = equal_tpot([*blocks(a, "A"), *blocks(b, "B")], "the server computes on a CPU")
    assert one.speedup.headline is None and "no claim: the server computes on a CPU" in one.sentence


def test_paces_that_do_not_meet_have_no_ratio():
    (one,) = equal_tpot([*blocks({1: 100.0, 4: 80.0}, "A"), *blocks({1: 40.0, 4: 20.0}, "B")], "")
    assert one.speedup is None
    assert (
        "TPOT ranges do not overlap (9.98 to 12.5 and 25.1 to 50 ms" in one.sentence
        and "measure more concurrencies" in one.sentence
    )


def test_one_concurrency_gives_no_curve():
    (one,) = equal_tpot([*blocks({4: 80.0}, "A"), *blocks({4: 40.0}, "B")], "")
    assert "a curve needs at least two concurrencies" in one.sentence


def test_shapes_and_contents_are_kept_apart():
    result = []
    for content in ("prose", "code"):
        result += [
            *blocks({1: 100.0, 4: 50.0}, "A", content=content),
            *blocks({1: 90.0, 4: 45.0}, "B", content=content),
        ]
    assert [one.shape for one in equal_tpot(result, "")] == ["64 in / 10 out, prose", "64 in / 10 out, code"]
