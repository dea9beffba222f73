"""Allowed numbers of experts, and what engines require."""

import pytest
from expert_stats import router, rule

from halfbyte.errors import UsageError
from halfbyte.plan.pruned import keep_count, refuse_nothing_to_drop
from halfbyte.prune.report import count_advice, count_facts
from halfbyte.ui.console import Advice

KIMI = router(384, 8)
NONE_CAN_GO = "prune another model: this router needs all of its experts"
GROUPED = router(256, 8, 8, 4)


@pytest.mark.parametrize(
    ("drop", "experts", "stay"),
    [(0.25, 384, 288), (0.5, 384, 192), (0.1, 16, 15), (0.29, 100, 71), (0.999, 1000, 1), (0.3, 10, 7), (0.001, 8, 8)],
)
def test_a_dropped_share_is_rounded_down(drop, experts, stay):
    assert keep_count(rule(drop=drop), router(experts)) == stay


def test_valid_expert_counts():
    assert [keep_count(rule(keep), KIMI) for keep in (8, 192, 384)] == [8, 192, 384]
    assert keep_count(rule(128), GROUPED) == 128
    assert keep_count(rule(16), GROUPED) == 16
    assert keep_count(rule(drop=0.5), GROUPED) == 128


@pytest.mark.parametrize(
    ("said", "shape", "what", "where", "fix"),
    [
        (rule(7), KIMI, "7 experts are too few: each token is routed to 8", "prune.keep", "keep 8 or more"),
        (rule(385), KIMI, "cannot keep 385 of 384 experts", "prune.keep", "keep 383 or fewer"),
        (rule(drop=0.99), KIMI, "4 experts are too few: each token is routed to 8", "prune.drop", "keep 8 or more"),
        (rule(130), GROUPED, "130 experts cannot be split into 8 equal groups", "prune.keep", "keep 128 or 136"),
        (rule(drop=0.3), GROUPED, "180 experts cannot be split into 8 equal groups", "prune.drop", "keep 176 or 184"),
        (
            rule(8),
            GROUPED,
            "1 expert in a group is too few: groups are scored by their two best experts",
            "prune.keep",
            "keep 16 or more",
        ),
        (
            rule(16),
            router(256, 8, 8, 2),
            "2 experts in a group are too few: 8 are selected from 2 groups",
            "prune.keep",
            "keep 32 or more",
        ),
        (
            rule(4),
            router(16, 2, 4, 4),
            "1 expert in a group is too few: groups are scored by their two best experts",
            "prune.keep",
            "keep 8 or more",
        ),
        (
            rule(8),
            router(250, 8, 8, 4),
            "250 experts cannot be split into 8 equal groups",
            "the router in config.json",
            "check n_group: config.json is inconsistent",
        ),
        (rule(6), router(8, 2, 4, 2), "6 experts cannot be split into 4 equal groups", "prune.keep", NONE_CAN_GO),
        (
            rule(4),
            router(8, 2, 4, 2),
            "1 expert in a group is too few: groups are scored by their two best experts",
            "prune.keep",
            NONE_CAN_GO,
        ),
        (rule(), KIMI, "keep and drop are both set or both missing", "prune", None),
        (rule(8, drop=0.5), KIMI, "keep and drop are both set or both missing", "prune", None),
    ],
)
def test_invalid_expert_counts_are_refused(said, shape, what, where, fix):
    with pytest.raises(UsageError) as caught:
        keep_count(said, shape)
    error = caught.value
    assert (error.what, error.where) == (what, where)
    assert error.fix == (fix or "set exactly one of keep (a count) and drop (a fraction)")


@pytest.mark.parametrize(
    ("said", "shape", "what", "fix"),
    [
        (rule(384), KIMI, "keeping 384 of 384 experts per layer drops none", "keep 383 or fewer"),
        (rule(256), GROUPED, "keeping 256 of 256 experts per layer drops none", "keep 248 or fewer"),
        (rule(8), router(8, 8), "keeping 8 of 8 experts per layer drops none", NONE_CAN_GO),
        (rule(drop=0.001), KIMI, "0.10% of 384 experts is less than one: none would be dropped", "drop 0.3% or more"),
        (
            rule(drop=0.1),
            router(8, 2),
            "10.00% of 8 experts is less than one: none would be dropped",
            "drop 12.5% or more",
        ),
    ],
)
def test_rules_that_drop_nothing(said, shape, what, fix):
    assert keep_count(said, shape) == shape.experts  # which a plan may say
    with pytest.raises(UsageError) as caught:
        refuse_nothing_to_drop(said, shape)
    assert (caught.value.what, caught.value.fix) == (what, fix)
    if share := fix.removeprefix("drop ").removesuffix("% or more") if "drop" in fix else "":
        refuse_nothing_to_drop(rule(drop=float(share) / 100), shape)


def test_engine_support_of_expert_counts():
    assert count_facts(256).as_dict() == {
        "count": 256,
        "fast_router": True,
        "loads_well": True,
        "flashinfer_fp8": True,
        "parallel": [2, 4, 8, 16, 32, 64],
    }
    assert count_facts(192).parallel == (2, 4, 8, 16, 32, 64)
    assert not count_facts(192).fast_router
    assert count_facts(100).parallel == (2, 4)
    assert [count_facts(count).flashinfer_fp8 for count in (190, 192, 512, 516)] == [False, True, True, False]


def test_advice_about_expert_counts():
    assert count_advice(256, 384) == [
        Advice("good", "256 experts keep the fast router kernels of vLLM and SGLang"),
    ]
    lost = "192 experts lose the fast router kernels of vLLM and SGLang, which exist for 256 and 384"
    assert count_advice(192, 384, parallel=[8]) == [Advice("note", lost, "keep 256 to use them")]
    assert count_advice(128, 256)[0].fix == ""  # nothing between 128 and 256 has them
    assert count_advice(96, 128) == []  # the source had none to lose
    assert count_advice(24, 32) == []  # all 32 would be no pruning
    assert count_advice(40, 64) == [Advice("note", "40 is not a multiple of 32, which engines prefer", "keep 32")]
    assert count_advice(6, 8, parallel=[8])[-1].fix == ""
    texts = [(advice.level, advice.text, advice.fix) for advice in count_advice(190, 200, parallel=[4, 5])]
    assert texts == [
        ("note", "190 is not a multiple of 32, which engines prefer", "keep 160 or 192"),
        ("note", "FlashInfer's FP8 MoE kernels need a multiple of 4 up to 512, not 190", ""),
        ("bad", "190 experts cannot be split over 4 devices by expert parallelism", "keep 188 or 192"),
    ]
