"""Published figures, our arithmetic, and the error between them, as stated in the docstring of fit.py."""

from dataclasses import replace

import pytest

from halfbyte.families.examples import example
from halfbyte.families.model import describe
from halfbyte.plan.manifest import make_plan
from halfbyte.recipe.load import load_recipe
from halfbyte.serve import fit as module
from halfbyte.serve.checkpoint_facts import served_checkpoint
from halfbyte.serve.fit import Load, Parallel, fit, parse_gpus
from halfbyte.serve.launch import launch
from halfbyte.serve.launch_facts import LaunchOptions
from halfbyte.serve.needs import eagle3_mla, needs, needs_of

EIGHT, FOUR = "8xRTX PRO 6000", "4xRTX PRO 6000"


@pytest.fixture(scope="module")
def released():
    checkpoint = example("kimi-k2.6")
    return checkpoint, describe(checkpoint)


@pytest.fixture(scope="module")
def k26(released):
    return needs_of(*released)


def stated(reported, here):
    """Return whether the docstring has such a line."""
    says = f"here {here:,} {100 * (here / reported - 1):+.1f} %"
    lines = [line.split() for line in module.__doc__.splitlines()]
    return any(f"{reported:,}" in words and " ".join(words).endswith(says) for words in lines)


# April's builds of rtx6kpro reserve 64 splits (MAX_NUM_KV_SPLITS in their triton_mla.py), May's none before decoding.
APRIL, APRIL_DRAFT, MAY = Load(splits=64), Load(splits=64, speculative_tokens=3), Load(splits=0)
SAMPLING_DRAFT = eagle3_mla()


@pytest.mark.parametrize(
    ("context_parallel", "load", "draft", "reported", "within"),
    [
        (1, APRIL, None, 437_000, 0.05),
        (4, APRIL, None, 1_690_000, 0.05),
        (8, APRIL, None, 3_270_000, 0.05),
        (1, APRIL_DRAFT, SAMPLING_DRAFT, 337_296, 0.18),
        (8, APRIL_DRAFT, SAMPLING_DRAFT, 1_769_600, 0.31),
        (1, MAY, None, 491_344, 0.07),
        (8, MAY, None, 3_930_752, 0.07),
    ],
)
def test_kimi_on_eight_rtx_pro_6000(k26, context_parallel, load, draft, reported, within):
    parallel = Parallel(decode_context=context_parallel, vision="weights")
    found = fit(k26, parse_gpus(EIGHT), parallel=parallel, utilization=0.94, draft=draft, load=load)
    assert found.kv_tokens == pytest.approx(reported, rel=within)
    assert stated(reported, found.kv_tokens)


APRIL_S_BUILD = "voipmonitor-20260423"
SHARE = ["gpu_memory_utilization=0.94"]


@pytest.mark.parametrize(
    ("options", "reported", "printed"),
    [
        ({"dcp": 1, "version": APRIL_S_BUILD}, 437_000, 455_168),
        ({"dcp": 4, "version": APRIL_S_BUILD}, 1_690_000, 1_772_544),
        ({"dcp": 8, "version": APRIL_S_BUILD}, 3_270_000, 3_424_768),
        ({"dcp": 1, "version": APRIL_S_BUILD, "draft": "auto", "settings": SHARE}, 337_296, 394_880),
        ({"dcp": 8, "version": APRIL_S_BUILD, "draft": "auto", "settings": SHARE}, 1_769_600, 2_313_216),
        ({"dcp": 1}, 437_000, 436_544),
        ({"dcp": 4}, 1_690_000, 1_474_048),
        ({"dcp": 8}, 3_270_000, 2_230_784),
        ({"dcp": 1}, 491_344, 436_544),
        ({"dcp": 8}, 3_930_752, 2_230_784),
        ({"dcp": 1, "draft": "auto"}, 337_296, 207_232),
        ({"dcp": 8, "draft": "auto"}, 1_769_600, 947_712),
    ],
)
def test_serve_prints_the_documented_figures(released, options, reported, printed):
    found = launch(served_checkpoint(*released), parse_gpus(EIGHT), LaunchOptions(**options)).fit
    assert found.kv_tokens == printed
    assert stated(reported, printed)


@pytest.mark.parametrize(("version", "printed"), [(APRIL_S_BUILD, 814_080), (None, 812_288)])
def test_serve_prints_the_documented_figures_for_half_the_experts(released, version, printed):
    full = served_checkpoint(*released)
    half = replace(full, needs=full.needs.pruned(192), experts=192, source_experts=384, kv_dtype="fp8")
    half = replace(half, quantization="nvfp4-modelopt", activations="nvfp4")
    options = LaunchOptions(dcp=4, concurrency=1, draft="auto", context=262_144, version=version)
    assert launch(half, parse_gpus(FOUR), options).fit.kv_tokens == printed
    assert stated(811_000, printed)


def test_context_parallelism_multiplies_exactly_where_no_workspace_grows_with_it(k26):
    """The build of May: 491,344 x 2, x 4, x 8 to the token. Here the prefill workspace grows by 1/DCP, as in 0.32."""
    assert [491_344 * times for times in (2, 4, 8)] == [982_688, 1_965_376, 3_930_752]
    tokens = {}
    for times in (1, 2, 4, 8):
        parallel = Parallel(decode_context=times, vision="weights")
        tokens[times] = fit(k26, parse_gpus(EIGHT), parallel=parallel, utilization=0.94, load=MAY).kv_tokens
    assert tokens[8] / tokens[1] == pytest.approx(8, rel=0.005)
    with_splits = [
        fit(k26, parse_gpus(EIGHT), parallel=Parallel(decode_context=times), utilization=0.94, load=APRIL).kv_tokens
        for times in (1, 8)
    ]
    assert with_splits[1] / with_splits[0] == pytest.approx(3_270_000 / 437_000, rel=0.02)  # 7.48, not 8


def test_half_the_experts_on_four_rtx_pro_6000(k26):
    half = k26.pruned(192)
    assert half.weights_nbytes == 309_602_275_296  # as published, to the byte
    load = Load(sequences=1, speculative_tokens=3, splits=64)

    def served(vision, share):
        parallel = Parallel(decode_context=4, vision=vision)
        asked = {"parallel": parallel, "draft": eagle3_mla(), "context": 262_144, "load": load, "utilization": share}
        return fit(half, parse_gpus(FOUR), **asked)

    found = served("weights", 0.90)
    assert found.fits
    assert found.kv_tokens == pytest.approx(811_000, rel=0.02)
    assert stated(811_000, found.kv_tokens)
    assert found.contexts == pytest.approx(3.09, rel=0.02)  # the card's concurrency
    # What the card does not say matters more than the error: as docstring and log tell.
    assert round(100 * (served("weights", 0.92).kv_tokens / 811_000 - 1)) == 29
    assert round(100 * (served("weights", 0.94).kv_tokens / 811_000 - 1)) == 57
    assert round(100 * (served("data", 0.90).kv_tokens / 811_000 - 1)) == -8


def test_mxfp4_on_eight_gpus(released):
    mxfp4 = needs(make_plan(*released, load_recipe("kimi-k2.6-mxfp4-wafer")))
    found = fit(mxfp4, parse_gpus("8xMI350X"))
    assert found.weights_nbytes == pytest.approx(70e9, rel=0.05)
    assert stated(70.0, round(found.weights_nbytes / 1e9, 1))


def test_four_b200_are_tight(k26):
    """Guides call 720 GB tight for NVFP4, which is as large as INT4: less than two contexts of full length."""
    found = fit(k26, parse_gpus("4xB200"))
    assert found.fits
    assert 1 < found.contexts < 2


def test_the_draft_s_geometry_explains_what_fp8_saves():
    """A draft in FP8 left 431,328 instead of 424,576 tokens on each of 8 GPUs: half of its linears."""
    draft, head = eagle3_mla(), 163_840 * 7168 * 2
    linears = draft.whole_nbytes + (draft.nbytes - draft.whole_nbytes - head) // 8
    assert linears / 2 == pytest.approx((431_328 - 424_576) * 62 * 576, rel=0.02)
