"""Does it fit: by hand, against what people report, for MLA and grouped-query heads, and on the command line."""

import json
from dataclasses import replace

import pytest

from halfbyte.errors import UsageError
from halfbyte.models.model import describe
from halfbyte.plan.manifest import make_plan
from halfbyte.recipe import load_recipe
from halfbyte.serve.fit import RESERVE_NBYTES, Gpus, Needs, fit, gpu_memory, kv_values, parse_gpus
from halfbyte.serve.needs import needs
from halfbyte.source.checkpoint import open_checkpoint
from halfbyte.source.example import example

GB = 10**9
# Kimi-K2.6 as it is released: 595 GB, of which routers, norms, q_a and kv_a, vision and projector are on every GPU.
WHOLE = sum((165_150_720 * 2 + 23_040 * 4, 2_013_184, 61 * (1536 + 576) * 7168 * 2, 833_732_064, 108_555_776))
K26 = Needs(595_148_192_736, WHOLE, 61 * 576, 1, 262_144, 64)


def test_what_kimi_needs_is_read_off_the_plan():
    checkpoint = example("kimi-k2.6")
    found = needs(make_plan(checkpoint, describe(checkpoint), load_recipe("kimi-k2.6-mxfp4-wafer")))
    assert found == replace(K26, weights_nbytes=563_438_701_536)


def test_by_hand():
    """A GPU of 100 GB: 90 of them used, 4 for activations, a half of what is split and all of what is not."""
    found = fit(Needs(60 * GB, 10 * GB, 1000, 1, 10_000, 64), Gpus(2, "test", 100 * GB))
    assert RESERVE_NBYTES == 4 * GB
    assert found.weights_nbytes == 35 * GB
    assert found.kv_nbytes == 51 * GB
    assert (found.fp8_tokens, found.bf16_tokens) == (51_000_000, 25_500_000)
    assert found.contexts == 5100
    assert found.fits
    assert not found.shares_kv


def test_the_cache_of_mla_is_not_split_and_that_of_heads_is():
    assert kv_values({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_key_value_heads": 64}, 61) == (35_136, 1)
    assert kv_values({"num_key_value_heads": 4, "head_dim": 128, "num_attention_heads": 32}, 48) == (49_152, 4)
    assert kv_values({"num_attention_heads": 8, "hidden_size": 512}, 2) == (2 * 2 * 512, 8)
    gpu, heads = parse_gpus("1xB200"), Needs(GB, 0, 1024, 4, 1000, 32)
    left = fit(heads, gpu).kv_nbytes
    for count, part in ((1, 1024), (2, 512), (4, 256), (8, 256)):  # eight GPUs hold the four heads twice
        found = fit(heads, replace(gpu, count=count))
        assert found.fp8_tokens == found.kv_nbytes // part
    assert left == int(gpu.memory_nbytes * 0.9) - RESERVE_NBYTES - GB


def test_a_config_that_does_not_tell_leaves_tokens_unknown():
    found = fit(Needs(GB, 0, *kv_values({}, 3), None, None), parse_gpus("1xH200"))
    assert found.fits
    assert (found.fp8_tokens, found.bf16_tokens, found.contexts) == (None, None, None)


@pytest.mark.parametrize(
    ("weights_nbytes", "gpus", "utilization", "reported"),
    [
        (595_148_192_736, "8xRTX PRO 6000", 0.94, 437_000),  # rtx6kpro's guide, without decode context parallelism
        (309_602_275_784, "4xRTX PRO 6000", 0.90, 811_000 / 4),  # 192 experts, a draft model, DCP 4
    ],
)
def test_against_what_people_report(weights_nbytes, gpus, utilization, reported):
    found = fit(replace(K26, weights_nbytes=weights_nbytes), parse_gpus(gpus), utilization=utilization)
    assert found.fp8_tokens == pytest.approx(reported, rel=0.2)


def test_what_does_not_fit_says_what_would():
    found = fit(K26, parse_gpus("4xRTX PRO 6000"))
    assert not found.fits
    assert found.problem == "each GPU would need 155.1 GB, 63.4 GB too many"
    assert found.advice == "8xRTX PRO 6000 would do"
    assert (found.fp8_tokens, found.as_dict()["gpu_kv_nbytes"]) == (0, 0)
    assert fit(K26, parse_gpus("6xB300")).problem == "64 attention heads cannot be split over 6 GPUs"
    huge = replace(K26, replicated_nbytes=K26.weights_nbytes)
    assert fit(huge, parse_gpus("8xB200")).advice == "no number of B200 would do"


@pytest.mark.parametrize("text", ["8xB200", "8xb200", " 8 x B200 ", "8XB200"])
def test_names_in_any_spelling(text):
    assert parse_gpus(text) == Gpus(8, "B200", gpu_memory()["B200"])
    assert str(parse_gpus("4xrtx_pro-6000")) == "4xRTX PRO 6000"
    assert parse_gpus("8xMI355X").memory_nbytes > 288 * GB  # AMD's gigabytes are GiB


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("8xB20", "no GPU is named 'b20'", "did you mean 'B200'?"),
        ("8xTPU", "no GPU is named 'tpu'", "choose one of B200, B300"),
        ("B200", "'B200' is no number of GPUs", "write it like 8xB200"),
        ("0xB200", "'0xB200' is no number of GPUs", "write it like 8xB200"),
        ("²xB200", "'²xB200' is no number of GPUs", "write it like 8xB200"),
        ("", "'' is no number of GPUs", "write it like 8xB200"),
    ],
)
def test_other_names_are_errors_with_a_suggestion(text, what, fix):
    with pytest.raises(UsageError) as caught:
        parse_gpus(text)
    assert caught.value.what == what
    assert caught.value.fix.startswith(fix)


@pytest.mark.parametrize("kind", ["int4-k2.6", "fp8-block-k2"])
def test_every_family_tells_its_cache(pico, kind):
    checkpoint = open_checkpoint(pico(kind))
    found = needs(make_plan(checkpoint, describe(checkpoint), load_recipe("kimi-k2.6-bf16")))
    assert found.kv_values > 0
    assert 0 < found.replicated_nbytes < found.weights_nbytes


def test_the_command_says_it_and_fails_if_it_does_not_fit(halfbyte):
    ask = ("plan", "--example", "kimi-k2.6", "-r", "kimi-k2.6-mxfp4-wafer", "--no-measure", "--fit")
    code, printed, _ = halfbyte(*ask, "8xB200", "--json")
    value = json.loads(printed)
    assert code == 0
    assert (value["fit"]["fits"], value["fit"]["gpus"], value["fit"]["context"]) == (True, "8xB200", 262_144)
    assert value["fit"]["kv_tokens_fp8"] == pytest.approx(2_709_198, rel=1e-3)
    assert "time" not in value
    code, printed, error = halfbyte(*ask, "4xRTX-PRO-6000")
    assert code == 1
    assert "fits     4xRTX PRO 6000: no, each GPU would need" in printed
    assert "8xRTX PRO 6000 would do" in error


def test_a_number_of_gpus_that_nobody_has():
    with pytest.raises(UsageError, match="is no number of GPUs"):
        parse_gpus("9" * 5000 + "xB200")
