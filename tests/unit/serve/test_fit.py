"""Memory fit: by hand, for MLA and grouped-query heads, for every kind of parallelism, and on the command line."""

import json
from dataclasses import replace

import pytest

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.doctor.facts import FP4_BY_ARCH, NO_FP4_ARCHES
from halfbyte.errors import UsageError
from halfbyte.families.model import describe
from halfbyte.plan.manifest import make_plan
from halfbyte.recipe.load import load_recipe
from halfbyte.serve.checkpoint_facts import served
from halfbyte.serve.fit import Load, Parallel, fit, kv_token_nbytes, parse_gpus
from halfbyte.serve.gpus import Gpus, known_gpus
from halfbyte.serve.memory_per_gpu import LIBRARIES_NBYTES, reserve
from halfbyte.serve.needs import (
    EXPERTS,
    TOWER,
    VOCABULARY,
    WHOLE,
    WIDTH,
    Draft,
    ExpertLayers,
    Needs,
    Part,
    draft_of,
    eagle3_mla,
    kv_values,
    needs,
)

GB = 10**9


def kimi(**changes):
    """Kimi-K2.6 as released, from the sums of its tensor classes."""
    parts = (
        Part("routed experts", 60 * 384 * 24_772_632, EXPERTS),
        Part("attention", 10_489_954_304, WIDTH),
        Part("shared experts", 2_642_411_520 * 2, WIDTH),
        Part("dense MLP", 396_361_728 * 2, WIDTH),
        Part("embedding", 1_174_405_120 * 2, VOCABULARY),
        Part("output head", 1_174_405_120 * 2, VOCABULARY),
        Part("absorbed kv_b", 61 * 16_384 * 512 * 2, WIDTH),
        Part("latent attention", 61 * (1536 + 576) * 7168 * 2, WHOLE),
        Part("vision tower", 833_732_064, TOWER),
        Part("projector", 108_555_776, WHOLE),
        Part("routers", 165_150_720 * 2 + 23_040 * 4, WHOLE),
        Part("norms", 2_013_184, WHOLE),
    )
    found = Needs(
        parts=parts,
        routed=(ExpertLayers(384, 60, 60 * 384 * 24_772_632),),
        layers=61,
        kv_values=61 * 576,
        kv_heads=1,
        latent=576,
        context=262_144,
        heads=64,
        vocabulary=163_840,
        active_experts=8,
        width=7168,
        expert_width=2048,
        value_latent=512,
        expanded=16_384,
        vision=True,
    )
    return replace(found, **changes)


K26 = kimi()


def plain(nbytes, whole=0, *, values=0, kv_heads=1, layers=1, context=None, heads=None):
    """A model described only by its width, without activation facts."""
    parts = (Part("attention", nbytes - whole, WIDTH), Part("norms", whole, WHOLE))
    return Needs(parts, (), layers, values, kv_heads, None, context, heads, None)


def test_the_numbers_above_are_those_of_the_release():
    assert K26.weights_nbytes == 595_148_192_736


def test_shares_match_a_computation_by_hand():
    """A GPU of 100 GB: 90 of them used, 1.5 for libraries, a half of what is split and all of what is not."""
    found = fit(plain(60 * GB, 10 * GB, values=1000, context=10_000, heads=64), Gpus(2, "test", 100 * GB))
    assert LIBRARIES_NBYTES == found.reserve_nbytes == 1_500_000_000
    assert found.weights_nbytes == 35 * GB
    assert found.kv_nbytes == 53_500_000_000
    assert (found.fp8_tokens, found.bf16_tokens) == (53_500_000 // 64 * 64, 26_750_000 // 64 * 64)
    assert found.contexts == found.kv_tokens / 10_000
    assert found.fits


def test_kimi_on_eight_gpus_part_by_part():
    found = fit(K26, parse_gpus("8xB200"))
    assert {share.name: share.nbytes for share in found.weights} == {
        "routed experts": 60 * 48 * 24_772_632,
        "attention": 1_311_244_288,
        "shared experts": 660_602_880,
        "dense MLP": 99_090_432,
        "embedding": 20_480 * 7168 * 2,
        "output head": 20_480 * 7168 * 2,
        "absorbed kv_b": 61 * 2048 * 512 * 2,
        "latent attention": 1_846_935_552,
        "vision tower": 833_732_064,
        "projector": 108_555_776,
        "routers": 330_393_600,
        "norms": 2_013_184,
    }
    # 8,192 tokens: an output for each of 8 experts and its three inner states, four hidden states, one for images.
    hidden = 8192 * 7168 * 2
    activations = 8 * 8192 * (7168 + 3 * 2048 // 8) * 2 + 5 * hidden
    workspace = 65_536 * 576 * 2 + (128 << 20)
    assert [share.nbytes for share in found.reserve] == [activations, workspace, LIBRARIES_NBYTES]
    assert found.kv_token_nbytes == 61 * 576
    assert found.kv_tokens == found.kv_nbytes // (61 * 576 * 64) * 64


def test_vision_is_split_with_the_weights_mode():
    data, weights = (fit(K26, parse_gpus("8xB200"), parallel=Parallel(vision=mode)) for mode in ("data", "weights"))
    assert data.weights_nbytes - weights.weights_nbytes == 833_732_064 - 833_732_064 // 8


def test_expert_parallelism_deals_out_whole_experts():
    even, split = (fit(K26, parse_gpus("8xB200"), parallel=Parallel(expert=ep)) for ep in (True, False))
    assert even.weights_nbytes == split.weights_nbytes  # 48 of 384 are an eighth
    uneven = fit(K26.pruned(100), parse_gpus("8xB200"), parallel=Parallel(expert=True))
    assert uneven.weights[0].nbytes == 60 * 13 * 24_772_632  # not 12.5
    assert uneven.weights[0].why == "13 of 100 experts"


def test_several_copies_share_experts_or_hold_them_all():
    alone = fit(K26, parse_gpus("8xB300"))
    copies = fit(K26, parse_gpus("16xB300"), parallel=Parallel(tensor=8))
    assert copies.weights_nbytes == alone.weights_nbytes
    assert copies.kv_tokens == 2 * alone.kv_tokens
    together = fit(K26, parse_gpus("16xB300"), parallel=Parallel(tensor=8, expert=True))
    by_name = {share.name: share for share in together.weights}
    assert by_name["routed experts"].nbytes == 60 * 24 * 24_772_632
    assert by_name["shared experts"].nbytes == by_name["shared experts"].of_nbytes  # sequences are split instead


def test_a_vocabulary_is_padded():
    part = Part("embedding", 1000 * 2, VOCABULARY)
    found = fit(replace(plain(GB), parts=(part,), vocabulary=1000), parse_gpus("2xH200"))
    assert found.weights[0].nbytes == 512 * 2  # 1,000 rows become 1,024, and half of them are here
    assert found.weights[0].why == "1,000 rows padded to 1,024"


def test_the_cache_of_mla_is_not_split_and_that_of_heads_is():
    assert kv_values({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_key_value_heads": 64}, 61) == (35_136, 1)
    assert kv_values({"num_key_value_heads": 4, "head_dim": 128, "num_attention_heads": 32}, 48) == (49_152, 4)
    assert kv_values({"num_attention_heads": 8, "hidden_size": 512}, 2) == (2 * 2 * 512, 8)
    heads = plain(GB, values=1024, kv_heads=4, heads=32)
    for count, part in ((1, 1024), (2, 512), (4, 256), (8, 256)):  # eight GPUs hold the four heads twice
        assert kv_token_nbytes(heads, count, "fp8") == part
        assert kv_token_nbytes(heads, count, "bf16") == 2 * part
    assert kv_token_nbytes(K26, 8, "bf16") == 61 * 1152
    assert kv_token_nbytes(K26, 8, "fp8_ds_mla") == 61 * 656
    assert kv_token_nbytes(K26, 8, "fp8", Draft(GB)) == 62 * 576


def test_the_cache_s_format_is_spelled_as_engines_do():
    gpus = parse_gpus("8xB200")
    for spelled, meant in (("fp8_e4m3", "fp8"), ("auto", "bf16"), ("bfloat16", "bf16")):
        assert fit(K26, gpus, kv_dtype=spelled) == fit(K26, gpus, kv_dtype=meant)
    with pytest.raises(UsageError, match="unknown KV cache dtype 'fp7'") as caught:
        fit(K26, gpus, kv_dtype="fp7")
    assert caught.value.fix == "did you mean 'fp8'?"


def test_context_parallelism_divides_the_cache_and_nothing_else():
    for count in (4, 8):
        gpus = parse_gpus(f"{count}xB300")
        alone = fit(K26, gpus)
        for times in (2, 4):
            found = fit(K26, gpus, parallel=Parallel(decode_context=times))
            assert found.weights == alone.weights
            assert found.kv_token_nbytes == alone.kv_token_nbytes
            assert found.kv_tokens == found.kv_nbytes // (61 * 576 * 64) * 64 * times
            extra = 65_536 // times * 576 * 2 + (128 << 20)  # gathered context, and room to merge partial results
            assert found.reserve_nbytes - alone.reserve_nbytes == extra


def test_on_sm_120_the_workspace_grows_with_requests_and_context_parallelism():
    """TRITON_MLA: FP32 room for 513 values of each row, head and split; 376 splits are two for each multiprocessor."""
    gpus = parse_gpus("8xRTX PRO 6000")
    prefill = 65_536 * 576 * 2

    def workspace(context_parallel, load):
        found = reserve(K26, gpus, Parallel(decode_context=context_parallel), load)
        gathered = prefill // context_parallel if context_parallel > 1 else 0
        return next(share.nbytes for share in found if share.name == "attention workspace") - prefill - gathered

    assert workspace(1, Load()) == 128 * 8 * 376 * 513 * 4
    assert workspace(8, Load()) == 128 * 64 * 376 * 513 * 4
    assert workspace(8, Load(sequences=1)) == 64 * 376 * 513 * 4
    assert workspace(1, Load(speculative_tokens=3)) == 4 * 128 * 8 * 376 * 513 * 4
    assert workspace(8, Load(speculative_tokens=3)) == 128 * 64 * 376 * 513 * 4  # one row a request
    assert workspace(1, Load(context=32_768)) == 128 * 8 * 64 * 513 * 4
    assert workspace(1, Load(splits=64)) == 128 * 8 * 64 * 513 * 4


def test_a_draft_takes_its_weights_its_states_and_a_layer_of_cache():
    gpus, draft = parse_gpus("8xB200"), eagle3_mla()
    alone, both = fit(K26, gpus), fit(K26, gpus, draft=draft)
    weights = draft.whole_nbytes + (draft.nbytes - draft.whole_nbytes) // 8
    assert both.weights_nbytes - alone.weights_nbytes == weights
    assert both.reserve_nbytes - alone.reserve_nbytes == 2 * 3 * 8192 * 7168 * 2
    assert both.kv_token_nbytes == 62 * 576
    assert fit(K26, gpus, draft=8 * GB).weights_nbytes - alone.weights_nbytes == GB


def test_a_draft_in_a_folder_is_read_by_its_headers(pico):
    folder = pico("bf16")
    checkpoint = open_checkpoint(folder)
    embedding = sum(tensor.nbytes for name, tensor in checkpoint.tensors.items() if "embed_tokens" in name)
    whole = sum(t.nbytes for name, t in checkpoint.tensors.items() if "q_a_proj" in name or "kv_a_proj" in name)
    assert draft_of(folder) == Draft(checkpoint.nbytes - embedding, whole, layers=3, tokens=3)


def test_more_gpus_never_fit_less():
    kinds = [known_gpus()[name] for name in ("B200", "H200", "RTX PRO 6000", "MI355X")]
    for kind in kinds:
        tokens = [fit(K26, replace(kind, count=count)).kv_tokens for count in (1, 2, 4, 8, 16, 32, 64)]
        assert tokens == sorted(tokens)
        gpus = replace(kind, count=8)
        used = [fit(K26, gpus, utilization=share / 100).kv_tokens for share in range(50, 100, 5)]
        assert used == sorted(used)
        kept = [fit(K26.pruned(experts), gpus).kv_tokens for experts in range(384, 8, -8)]
        assert kept == sorted(kept)
        requests = [fit(K26, gpus, concurrency=number).kv_tokens for number in (256, 64, 16, 4, 1)]
        assert requests == sorted(requests)
        found = fit(K26, gpus)
        assert found.fp8_tokens >= found.bf16_tokens


def test_an_incomplete_config_leaves_tokens_unknown():
    found = fit(plain(GB), parse_gpus("1xH200"))
    assert found.fits
    assert (found.kv_tokens, found.fp8_tokens, found.bf16_tokens, found.contexts) == (None, None, None, None)
    assert not any(line.startswith("tokens") for line in found.lines())


def test_advice_names_what_would_fit():
    found = fit(K26, parse_gpus("4xRTX PRO 6000"), parallel=Parallel(decode_context=4), concurrency=1)
    assert not found.fits
    assert found.problem == "each GPU needs 154.8 GB, 63.0 GB more than available"
    assert found.advice == "use 8xRTX PRO 6000, or prune to 208 of 384 experts"
    assert (found.fp8_tokens, found.record().gpu_kv_nbytes) == (0, 0)
    assert found.lines()[-1] == f"verdict    does not fit: {found.problem}; {found.advice}"
    assert fit(K26, parse_gpus("2xH200")).advice == (
        "use 8xH200, or prune to 144 of 384 experts (less than half: expect a damaged model)"
    )
    huge = replace(K26, parts=(Part("norms", 10**15, WHOLE),), routed=())
    assert fit(huge, parse_gpus("8xB200")).advice == "it does not fit on any number of B200"


def test_the_advised_gpus_are_the_fewest_that_fit():
    gpus, parallel = parse_gpus("4xRTX PRO 6000"), Parallel(decode_context=4)

    def fits(experts, count):
        asked = replace(gpus, count=count)
        return fit(K26.pruned(experts), asked, parallel=parallel, context=262_144, concurrency=1).fits

    assert (fits(208, 4), fits(216, 4)) == (True, False)
    assert (fits(384, 8), fits(384, 4)) == (True, False)


def test_a_requested_context_must_fit():
    gpus = parse_gpus("4xB200")
    found = fit(K26, gpus, kv_dtype="bf16", context=262_144)
    assert found.problem == "the KV cache has room for 249,408 tokens, less than a context of 262,144"
    assert found.advice == (
        "use 8xB200, or prune to 376 of 384 experts, or add --set kv_cache_dtype=fp8 or --dcp 2 or --context 248832"
        " to `halfbyte serve`"
    )
    assert fit(K26, gpus, kv_dtype="bf16").fits  # the full context was not requested
    assert fit(K26, gpus, kv_dtype="bf16", context=248_832).fits
    assert fit(K26, gpus, kv_dtype="fp8", context=262_144).fits


def test_fewer_requests_are_advised_where_each_needs_memory():
    gpus, shared = parse_gpus("8xRTX PRO 6000"), Parallel(decode_context=8)
    found = fit(K26, gpus, parallel=shared, context=262_144, concurrency=512)
    assert not found.fits
    assert "--concurrency 64" in found.advice
    many = fit(K26, gpus, parallel=shared, context=262_144, load=Load(sequences=512))
    assert "--set max_num_seqs=64" in many.advice


@pytest.mark.parametrize(
    ("gpus", "parallel", "problem", "advice"),
    [
        ("6xB300", Parallel(), "64 attention heads cannot be split over 6 GPUs", "use "),
        ("8xB300", Parallel(tensor=3), "8 GPUs cannot be divided into copies of 3", "use "),
        (
            "8xB300",
            Parallel(decode_context=3),
            "decode context parallelism 3 does not divide the 8 GPUs of tensor parallelism",
            "add --dcp 4 to `halfbyte serve`",
        ),
    ],
)
def test_what_an_engine_refuses_does_not_fit(gpus, parallel, problem, advice):
    found = fit(K26, parse_gpus(gpus), parallel=parallel)
    assert found.problem == problem
    assert found.advice.startswith(advice)


def test_heads_that_are_not_repeated_have_no_context_parallelism():
    heads = plain(GB, values=1024, kv_heads=4, heads=32)
    assert fit(heads, parse_gpus("8xB200"), parallel=Parallel(decode_context=2)).fits
    found = fit(heads, parse_gpus("8xB200"), parallel=Parallel(decode_context=4))
    assert found.problem == "decode context parallelism 4 needs 4 GPUs with the same KV heads"


def test_fit_lines_show_the_arithmetic():
    needed = plain(60 * GB, 10 * GB, values=1000, context=10_000, heads=64)
    assert fit(needed, Gpus(2, "test", 100 * GB), draft=Draft(2 * GB, tokens=0)).lines() == [
        "memory     100.0 GB x 0.9 = 90.0 GB on each GPU of 2xtest (TP 2)",
        "weights    attention 50.0 GB / 2 = 25.0 GB",
        "           norms 10.0 GB (on every GPU)",
        "           total 35.0 GB",
        "draft      draft 2.0 GB / 2 = 1.0 GB",
        "reserve    CUDA graphs and libraries 1.5 GB (an estimate)",
        "kv cache   90.0 GB - 35.0 GB - 1.0 GB - 1.5 GB = 52.5 GB",
        "tokens     52.5 GB / 2,000 bytes per token in fp8 = 26,249,984 in blocks of 64",
        "contexts   26,249,984 / 10,000 = 2625.00 concurrent full-length requests",
        "verdict    it fits",
    ]
    shared = fit(K26, parse_gpus("16xB300"), parallel=Parallel(tensor=8, decode_context=4, expert=True)).lines()
    assert shared[0].endswith("of 16xB300 (TP 8, EP 16, DCP 4, 2 copies)")
    assert any("; x 4 by DCP x 2 copies = " in line for line in shared)


@pytest.mark.parametrize("text", ["8xB200", "8xb200", " 8 x B200 ", "8XB200", "8\u00d7B200", "8 \u00d7 b200"])
def test_gpu_names_in_any_spelling(text):
    assert parse_gpus(text) == replace(known_gpus()["B200"], count=8)
    assert str(parse_gpus("4xrtx_pro-6000")) == "4xRTX PRO 6000"
    assert parse_gpus("8xMI355X").memory_nbytes > 288 * GB  # AMD's gigabytes are GiB


def test_the_gpu_table_is_complete():
    for name, gpu in known_gpus().items():
        assert (gpu.name, gpu.count) == (name, 1)
        assert gpu.memory_nbytes > 30 * GB
        assert (gpu.vendor, gpu.interconnect) in {("nvidia", "nvlink"), ("nvidia", "pcie"), ("amd", "xgmi")}
        assert set(gpu.fp4) <= {"nvfp4", "mxfp4"}
        # the two tables of this repository agree: `doctor` reads the architecture of the machine
        assert (gpu.arch in NO_FP4_ARCHES) == (not gpu.fp4)
        assert gpu.fp4 == () or FP4_BY_ARCH[gpu.arch] in gpu.fp4
        assert (gpu.arch in {"sm_80", "sm_89", "sm_120"}) == (gpu.multiprocessors > 0)
        assert gpu.memory_tb_s > 0
        assert ("fp4" in dict(gpu.pflops)) == bool(gpu.fp4)


@pytest.mark.parametrize(
    ("text", "gib", "arch", "fp4"),
    [
        ("8xA100", 79.25, "sm_80", ()),
        ("8xA100-80GB", 79.25, "sm_80", ()),
        ("8xA100-40GB", 39.50, "sm_80", ()),
        ("8xL40S", 44.42, "sm_89", ()),
        ("8xH20", 95.00, "sm_90", ()),
        ("8xH100", 79.10, "sm_90", ()),
        ("8xH200", 139.80, "sm_90", ()),
        ("8xB200", 178.35, "sm_100", ("nvfp4", "mxfp4")),
        ("8xB300", 267.69, "sm_103", ("nvfp4", "mxfp4")),
        ("4xGB200", 184.31, "sm_100", ("nvfp4", "mxfp4")),
        ("4xGB300", 276.50, "sm_103", ("nvfp4", "mxfp4")),
        ("8xRTX5090", 31.36, "sm_120", ("nvfp4", "mxfp4")),
        ("8x5090", 31.36, "sm_120", ("nvfp4", "mxfp4")),
        ("4xRTX PRO 6000 Blackwell", 94.97, "sm_120", ("nvfp4", "mxfp4")),
        ("8xMI300X", 191.98, "gfx942", ()),
        ("8xMI325X", 255.98, "gfx942", ()),
        ("8xMI350X", 287.98, "gfx950", ("mxfp4",)),
        ("8xMI355X", 287.98, "gfx950", ("mxfp4",)),
        ("8x80GB", 80e9 / 2**30, "unknown", ()),
        ("8x80 gb", 80e9 / 2**30, "unknown", ()),
        ("2x96GiB", 96, "unknown", ()),
    ],
)
def test_common_gpus_are_known_with_their_memory(text, gib, arch, fp4):
    gpus = parse_gpus(text)
    assert gpus.count == int(text[0])
    assert gpus.memory_nbytes == pytest.approx(gib * 2**30, abs=1)
    assert (gpus.arch, gpus.fp4) == (arch, fp4)
    assert parse_gpus(str(gpus)) == gpus


def test_a_model_is_divided_among_gpus_known_only_by_memory():
    by_name, by_memory = (fit(K26, parse_gpus(text)) for text in ("8xH200", "8x150GB"))
    assert by_name.weights == by_memory.weights
    assert by_memory.fits
    assert by_memory.kv_tokens == pytest.approx(by_name.kv_tokens, rel=0.05)
    assert "8x80GB" in fit(K26, parse_gpus("8x80GB")).lines()[0] or not fit(K26, parse_gpus("8x80GB")).fits


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("8xB20", "unknown GPU 'b20'", "use one of B200, B300"),
        ("8xTPU", "unknown GPU 'tpu'", "use one of B200, B300"),
        ("8x80TB", "unknown GPU '80tb'", "or the memory of each GPU, as in 8x80GB"),
        ("8x0GB", "unknown GPU '0gb'", "as in 8x80GB"),
        ("8x80", "unknown GPU '80'", "as in 8x80GB"),
        ("8", "'8' is not a valid number and kind of GPUs", "use a form like 8xB200 or 8x80GB"),
        ("8x", "'8x' is not a valid number and kind of GPUs", "use a form like 8xB200 or 8x80GB"),
        ("B200", "'B200' has no GPU count", "use 8xB200"),
        ("a100", "'a100' has no GPU count", "use 8xA100"),
        ("GB200", "'GB200' has no GPU count", "use 4xGB200"),
        ("H100 80GB", "'H100 80GB' has no GPU count", "use 8xH100"),
        ("RTX PRO 6000", "'RTX PRO 6000' has no GPU count", "use 8xRTXPRO6000"),
        ("5090", "'5090' has no GPU count", "use 8xRTX5090"),
        ("80GB", "'80GB' has no GPU count", "use 8x80GB"),
        ("TPU", "'TPU' is not a valid number and kind of GPUs", "use a form like 8xB200"),
        ("0xB200", "'0xB200' is not a valid number and kind of GPUs", "use a form like 8xB200"),
        ("²xB200", "'²xB200' is not a valid number and kind of GPUs", "use a form like 8xB200"),
        ("", "'' is not a valid number and kind of GPUs", "use a form like 8xB200"),
        ("9" * 5000 + "xB200", f"'{'9' * 5000}xB200' is not a valid number and kind of GPUs", "use a form like 8xB200"),
    ],
)
def test_other_names_are_errors_with_a_suggestion(text, what, fix):
    with pytest.raises(UsageError) as caught:
        parse_gpus(text)
    assert (caught.value.what, caught.value.where) == (what, "--gpus")
    assert fix in caught.value.fix
    with pytest.raises(UsageError) as caught:
        parse_gpus(text, where="--fit")
    assert caught.value.where == "--fit"


@pytest.mark.parametrize("kind", ["int4-k2.6", "fp8-block-k2", "qwen3-moe"])
def test_every_family_has_a_kv_cache_size(pico, kind):
    folder = pico(kind)
    found = served(folder)
    assert fit(found, parse_gpus("2xH200")).fits
    if kind != "qwen3-moe":  # whose small copy does not say how many heads it has
        assert found.needs.kv_values > 0
        checkpoint = open_checkpoint(folder)
        planned = needs(make_plan(checkpoint, describe(checkpoint), load_recipe("kimi-k2.6-bf16")))
        assert planned.weights_nbytes > found.needs.weights_nbytes


def test_plan_fit_prints_the_verdict_and_fails_if_it_does_not_fit(halfbyte):
    ask = ("plan", "--example", "kimi-k2.6", "-r", "kimi-k2.6-mxfp4-wafer", "--no-measure", "--fit")
    code, printed, _ = halfbyte(*ask, "8xMI350X", "--json")
    value = json.loads(printed)
    assert code == 0
    assert (value["fit"]["fits"], value["fit"]["gpus"], value["fit"]["context"]) == (True, "8xMI350X", 262_144)
    assert value["fit"]["kv_tokens_fp8"] == value["fit"]["kv_tokens"] > 5_000_000
    assert sum(value["fit"]["weights"].values()) == value["fit"]["gpu_weights_nbytes"] == 73_289_190_368
    assert "time" not in value
    code, printed, error = halfbyte(*ask, "2xMI350X")
    assert code == 1
    assert "fits     2xMI350X: no\n" in printed
    assert error.startswith("✗ the output does not fit on 2xMI350X: each GPU needs")
    assert "use 4xMI350X, or prune to" in error
    code, _, error = halfbyte(*ask, "8xB20")
    assert code == 2
    assert "--fit" in error
