"""Roofline limits, computed by hand for a small model, and for two known checkpoints."""

import pytest

from halfbyte.bench.roofline import decode_limit, distinct, prefill_limit
from halfbyte.engine.pipeline import plan
from halfbyte.errors import UsageError
from halfbyte.families.model import describe
from halfbyte.inspect.inspection import open_source
from halfbyte.recipe.load import load_recipe
from halfbyte.serve.gpus import Gpus, known_gpus, parse_gpus
from halfbyte.serve.needs import EXPERTS, WHOLE, WIDTH, ExpertLayers, Needs, Part, needs, needs_of

TWO = Gpus(2, "test", 1, memory_tb_s=1.0, pflops=(("fp4", 8.0), ("bf16", 1.0)))


def small() -> Needs:
    """4 layers of 8 experts, 2 of them active; 16 values per token in one cache."""
    return Needs(
        parts=(
            Part("routed experts", 16_000_000, EXPERTS, 32_000_000),
            Part("attention", 4_000_000, WIDTH, 2_000_000),
            Part("routers", 1_000_000, WHOLE, 500_000),
            Part("embedding", 99_000_000, WIDTH, 49_500_000),
        ),
        routed=(ExpertLayers(8, 4, 16_000_000),),
        layers=4,
        kv_values=16,
        kv_heads=1,
        latent=None,
        context=None,
        heads=2,
        vocabulary=None,
        active_experts=2,
    )


def test_one_token_reads_its_experts_and_everything_else_once():
    limit = decode_limit(small(), TWO, 1, context=1000)
    nbytes = {cost.name: cost.nbytes for cost in limit.costs}
    # A quarter of the experts and all attention, half on each GPU; routers whole; the cache whole, 2 bytes a value.
    assert nbytes == {
        "routed experts": 2_000_000,
        "attention": 2_000_000,
        "routers": 1_000_000,
        "attention to the cache": 32_000,
    }
    assert limit.tokens_per_second == pytest.approx(1e12 / 5_032_000, rel=1e-12)
    assert limit.bound_by == "memory"
    assert decode_limit(small(), TWO, 1, context=1000, kv_dtype="fp8").costs[-1].nbytes == 16_000


def test_many_tokens_want_all_experts_and_are_bound_by_arithmetic():
    tokens = 10_000
    limit = decode_limit(small(), TWO, tokens, context=0)
    experts = limit.costs[0]
    assert experts.nbytes == pytest.approx(8_000_000)
    assert experts.operations == pytest.approx(2 * 32_000_000 * 2 / 8 * tokens / 2)  # 2 of 8 experts, half on each GPU
    assert experts.compute_s == pytest.approx(experts.operations / 1e15)
    assert limit.bound_by == "compute"
    faster = decode_limit(small(), TWO, tokens, context=0, activations="nvfp4")
    assert faster.costs[0].compute_s == pytest.approx(experts.compute_s / 8)
    assert faster.costs[1].compute_s == limit.costs[1].compute_s, "attention is 2 bytes a parameter: BF16"


def test_a_kind_of_number_that_the_gpu_lacks_runs_as_the_next_wider():
    old = Gpus(2, "old", 1, memory_tb_s=1.0, pflops=(("bf16", 1.0),))
    assert decode_limit(small(), old, 9, 0, activations="nvfp4").costs == decode_limit(small(), old, 9, 0).costs


def test_distinct_experts():
    assert distinct(1, 384, 8) == pytest.approx(8)
    assert distinct(2, 384, 8) == pytest.approx(16 - 8 * 8 / 384)
    assert distinct(10_000, 384, 8) == pytest.approx(384)


def test_a_gpu_without_figures_and_a_strange_cache_are_refused():
    with pytest.raises(UsageError, match="unknown speed of"):
        decode_limit(small(), Gpus(1, "x", 1), 1, 1)
    with pytest.raises(UsageError, match="invalid KV cache dtype 'int2'"):
        decode_limit(small(), TWO, 1, 1, kv_dtype="int2")


def test_every_known_gpu_has_figures_that_halve_with_each_doubling_of_bits():
    for name, gpu in known_gpus().items():
        speeds = dict(gpu.pflops)
        assert 0.8 < gpu.memory_tb_s < 10, name  # an L40S has GDDR6
        if gpu.arch == "sm_80":  # Ampere multiplies no 8-bit floats
            assert set(speeds) == {"bf16"}, name
        else:  # NVIDIA's own figures for an L40S are 733 and 362.05
            assert speeds["fp8"] == pytest.approx(2 * speeds["bf16"], rel=0.013), name
        assert ("fp4" in speeds) == bool(gpu.fp4), name


@pytest.fixture(scope="module")
def kimi():
    checkpoint = open_source(None, "kimi-k2.6")
    made = plan(checkpoint, load_recipe("kimi-k2.6-nvfp4-wafer"))
    return needs_of(checkpoint, describe(checkpoint)), needs(made)


def test_kimi_has_the_parameters_that_its_card_says(kimi):
    int4, nvfp4 = kimi
    for result in kimi:
        text = sum(part.parameters for part in result.parts if part.name not in ("vision tower", "projector"))
        assert text == pytest.approx(1.026e12, rel=0.001)
    active = {cost.name: cost.operations for cost in decode_limit(int4, parse_gpus("1xB200"), 1, 0).costs}
    assert sum(active.values()) / 2 == pytest.approx(31.7e9, rel=0.01), "32 billion, less the embedding"
    assert [row.nbytes for row in int4.routed] == [row.nbytes for row in nvfp4.routed], "4.5 bits a weight both"


def test_nvfp4_against_int4_in_principle_on_8_b200(kimi):
    """Bytes are equal, so decode gains little; arithmetic gains in prefill; the rest of the ratio is the FP8 cache."""
    int4, nvfp4 = kimi
    gpus = parse_gpus("8xB200")

    def ratio(users: int, **kinds) -> float:
        a = decode_limit(nvfp4, gpus, users, 8704, activations="nvfp4", kv_dtype=kinds.get("a", "bf16"))
        return a.tokens_per_second / decode_limit(int4, gpus, users, 8704).tokens_per_second

    assert [round(ratio(users), 2) for users in (1, 8, 64, 512)] == [1.09, 1.03, 1.01, 1.0]
    assert [round(ratio(users, a="fp8"), 2) for users in (1, 64, 512)] == [1.15, 1.26, 1.67]
    reads = [
        prefill_limit(result, gpus, 1, 8192, activations=kind).tokens_per_second
        for result, kind in zip(kimi, ("none", "nvfp4"), strict=True)
    ]
    assert round(reads[1] / reads[0], 2) == 1.46
