"""Launch decisions by GPU, format, context and options, with the settings that served Kimi in practice."""

import hashlib
import json
from dataclasses import replace

import pytest
from kimi_served import kimi

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.evidence.record import plain
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.launch import CPU, engines_for, launch
from halfbyte.serve.launch_data import engines
from halfbyte.serve.launch_facts import LaunchOptions


def chosen_launch(machine, served=None, **options):
    return launch(served or kimi(), parse_gpus(machine), LaunchOptions(**options))


def value(found, name):
    """Return a setting's value, or None if it is not set."""
    return next((one.value for one in (*found.environment, *found.arguments) if one.name == name), None)


def warned(found, words):
    return any(words in note.text for note in found.warnings)


# Each row is a fact from practice; other settings may have any value.
FACTS = [
    ("8xB200", {}, {}, {"moe_backend": "flashinfer_trtllm", "kv_cache_dtype": "fp8", "tensor_parallel": 8}),
    ("8xB200", {"experts": 190}, {}, {"moe_backend": "flashinfer_cutlass"}),
    ("8xB200", {}, {"version": "0.25.0"}, {"moe_backend": None, "VLLM_USE_FLASHINFER_MOE_FP4": "1"}),
    ("8xB200", {}, {}, {"VLLM_USE_FLASHINFER_MOE_FP4": None, "enforce_eager": None, "trust_remote_code": None}),
    ("8xB300", {}, {}, {"attention_backend": "TOKENSPEED_MLA", "block_size": 64}),
    ("8xB300", {"kv_dtype": None}, {}, {"attention_backend": None, "block_size": None, "kv_cache_dtype": None}),
    ("8xB300", {}, {"version": "ngc-26.03.post1"}, {"enforce_eager": True, "moe_backend": "cutlass"}),
    ("8xB300", {}, {"engine": "sglang"}, {"quantization": "modelopt_fp4", "attention_backend": "tokenspeed_mla"}),
    ("8xB300", {}, {"draft": "auto"}, {"speculative": {"num_speculative_tokens": 4}}),
    ("8xH200", {}, {}, {"moe_backend": "marlin", "attention_backend": None}),
    ("8xH200", {"format": "int4"}, {}, {"moe_backend": None, "mm_encoder_tp_mode": "data"}),
    ("8xRTX PRO 6000", {}, {}, {"moe_backend": "flashinfer_cutlass", "attention_backend": "TRITON_MLA"}),
    ("8xRTX PRO 6000", {}, {}, {"disable_custom_all_reduce": True, "NCCL_P2P_LEVEL": "SYS"}),
    ("8xB200", {}, {}, {"disable_custom_all_reduce": None, "NCCL_P2P_LEVEL": None}),
    ("4xRTX PRO 6000", {"experts": 192}, {}, {"generation_config": {"repetition_penalty": 1.12, "temperature": 0}}),
    ("4xRTX PRO 6000", {"experts": 200}, {}, {"generation_config": None}),
    ("8xB200", {}, {}, {"max_model_len": 262_144, "max_num_batched_tokens": 8192}),
    ("8xB200", {}, {"context": 32_768}, {"max_model_len": 32_768, "max_num_batched_tokens": 8192}),
    ("8xB200", {}, {"text_only": True}, {"language_model_only": True, "mm_encoder_tp_mode": None}),
    ("8xB200", {"vision": False}, {}, {"language_model_only": None, "mm_encoder_tp_mode": None}),
    ("8xB200", {}, {}, {"tool_call_parser": "kimi_k2", "reasoning_parser": "kimi_k2", "auto_tool_choice": True}),
    ("8xB200", {"family": "kimi-k2-instruct"}, {}, {"tool_call_parser": "kimi_k2", "reasoning_parser": None}),
    ("8xB200", {"family": "deepseek_v3"}, {}, {"tool_call_parser": None, "reasoning_parser": None}),
    ("8xMI355X", {"format": "mxfp4"}, {}, {"VLLM_ROCM_USE_AITER": "1", "HSA_NO_SCRATCH_RECLAIM": "1"}),
    ("8xMI355X", {"format": "mxfp4"}, {}, {"VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS": "0", "tensor_parallel": 8}),
    ("8xMI355X", {"format": "int4"}, {}, {"moe_backend": "flydsl", "VLLM_ROCM_USE_AITER": "1"}),
    ("8xMI350X", {"format": "int4"}, {"engine": "sglang"}, {"tensor_parallel": 4, "SGLANG_USE_AITER": "1"}),
    ("8xMI350X", {"format": "mxfp4"}, {"engine": "atom"}, {"tensor_parallel": 8, "kv_cache_dtype": "fp8"}),
]


@pytest.mark.parametrize(("machine", "changes", "options", "expected"), FACTS)
def test_the_settings_match_published_findings(machine, changes, options, expected):
    found = chosen_launch(machine, kimi(**changes), **options)
    for name, wanted in expected.items():
        got = value(found, name)
        if name == "speculative":
            got = {key: got[key] for key in wanted}
        assert got == wanted, name


def test_every_setting_has_a_reason_and_a_source():
    for machine in ("8xB300", "8xRTX PRO 6000", "8xMI355X"):
        for name in engines_for(parse_gpus(machine)):
            found = chosen_launch(machine, kimi("int4"), engine=name)
            for one in (*found.environment, *found.arguments):
                assert one.reason, one
                assert one.source, one
                assert "{" not in one.reason, one


def test_the_cache_is_split_by_tokens_only_where_the_context_does_not_fit_otherwise():
    roomy = chosen_launch("4xRTX PRO 6000", kimi(experts=192))
    tight = chosen_launch("4xRTX PRO 6000", kimi(experts=192), concurrency=2)
    assert value(roomy, "decode_context_parallel") is None
    assert value(tight, "decode_context_parallel") == 4
    assert tight.fit.kv_tokens >= 2 * 262_144 > roomy.fit.kv_tokens >= 262_144
    assert value(tight, "max_num_seqs") == 2
    assert value(chosen_launch("8xB200"), "decode_context_parallel") is None


def test_the_context_is_reduced_to_what_fits():
    found = chosen_launch("4xRTX PRO 6000", kimi(experts=208))
    context = value(found, "max_model_len")
    assert 0 < context < 262_144
    assert context % 4096 == 0
    assert context <= found.fit.kv_tokens < context + 4096
    assert found.fit.fits
    assert f"shorter than the model's {262_144:,}: the cache has room for" in next(
        o.reason for o in found.arguments if o.name == "max_model_len"
    )
    assert found.fit.utilization == value(found, "gpu_memory_utilization") == 0.94


def test_hopper_gets_a_warning_about_nvfp4():
    found = chosen_launch("8xH200")
    assert warned(found, "sm_90 has no NVFP4 arithmetic, but the checkpoint works")
    assert not warned(chosen_launch("8xH200", kimi("int4")), "arithmetic")


@pytest.mark.parametrize("machine", ["8xA100", "8xH100", "8xH200"])
def test_mxfp4_of_compressed_tensors_runs_through_marlin_before_blackwell(machine):
    found = chosen_launch(machine, kimi("mxfp4_ct", experts=256))
    assert found.engine == "vllm"
    assert warned(found, "runs compressed-tensors' MXFP4 experts through Marlin as W4A16")
    assert not warned(found, "CUTLASS")


@pytest.mark.parametrize("machine", ["8xB200", "8xB300", "8xRTX PRO 6000"])
def test_mxfp4_of_compressed_tensors_quantizes_activations_on_blackwell(machine):
    found = chosen_launch(machine, kimi("mxfp4_ct"))
    assert found.engine == "vllm"
    assert warned(found, "also quantizes activations to MXFP4, although config.json declares weight-only quantization")
    assert not warned(found, "Marlin")
    assert not warned(chosen_launch(machine, kimi("mxfp4_ct", activations="mxfp4")), "declares weight-only")
    assert not warned(chosen_launch(machine, kimi("mxfp4_ct"), settings=["moe_backend=b12x"]), "CUTLASS")


@pytest.mark.parametrize("name", ["vllm-rocm", "sglang", "atom"])
def test_cdna3_has_no_fp4_units(name):
    for machine in ("8xMI300X", "8xMI325X"):
        assert warned(chosen_launch(machine, kimi("mxfp4"), engine=name), "gfx942 has no FP4 matrix units")
        assert not warned(chosen_launch(machine, kimi("int4"), engine=name), "FP4 matrix units")
    assert not warned(chosen_launch("8xMI355X", kimi("mxfp4"), engine=name), "FP4 matrix units")


def test_warnings_appear_only_where_they_apply():
    assert warned(chosen_launch("8xB200"), "FlashInfer 0.6.16.post4 and 0.6.17 compute NaN")
    assert not warned(chosen_launch("8xRTX PRO 6000"), "compute NaN")
    assert warned(chosen_launch("8xB200", settings=["moe_backend="]), "compute NaN")  # vLLM's own choice is TRT-LLM
    for other in ({"settings": ["moe_backend=cutlass"]}, {"version": "ngc-26.03.post1"}):
        assert not warned(chosen_launch("8xB200", **other), "compute NaN")
    assert not warned(chosen_launch("8xB200", kimi(experts=190)), "compute NaN")
    assert warned(chosen_launch("8xRTX PRO 6000"), "slower than the INT4 release through Marlin")
    assert not warned(chosen_launch("4xRTX PRO 6000", kimi(experts=192)), "slower than the INT4")  # which would not fit
    assert warned(
        chosen_launch("4xRTX PRO 6000", kimi(experts=192)), "tuned MoE kernel configurations exist only for 384"
    )
    assert not warned(chosen_launch("8xB200", kimi(experts=192), engine="sglang"), "tuned MoE kernel")
    assert warned(chosen_launch("4xB200"), "answers consisting of '!!!!' are from 4xB200")
    assert warned(chosen_launch("4xB200", engine="sglang"), "answers consisting of '!!!!' are from 4xB200")
    for roomy in (
        chosen_launch("8xB200"),
        chosen_launch("4xB300"),
        chosen_launch("4xB200", kimi("int4")),
        chosen_launch("4xB200", kimi(experts=192)),
    ):
        assert not warned(roomy, "'!!!!'")
    assert warned(chosen_launch("8xB200", kimi(experts=192)), "no sampling setting prevents loops in open-ended prose")
    assert not warned(chosen_launch("8xB200", kimi(experts=320)), "no sampling setting prevents loops")
    assert warned(chosen_launch("8xB200", settings=["max_num_batched_tokens=4096"]), "endless exclamation marks")
    assert not warned(chosen_launch("8xB200"), "endless exclamation marks")


def test_sglang_with_nvfp4_on_sm_120_needs_a_named_backend():
    with pytest.raises(UsageError, match="reported to produce NaN") as caught:
        chosen_launch("8xRTX PRO 6000", engine="sglang")
    assert "--set moe_backend" in caught.value.fix
    assert warned(
        chosen_launch("8xRTX PRO 6000", engine="sglang", settings=["moe_backend=triton"]), "reported to produce NaN"
    )
    assert chosen_launch("8xRTX PRO 6000", kimi("int4"), engine="sglang").engine == "sglang"


@pytest.mark.parametrize("version", ["0.31.9", "0.25.0", "ngc-26.03.post1", "0.32.0rc1"])
def test_weights_only_nvfp4_needs_a_vllm_that_does_not_multiply_it_by_zero(version):
    weights_only = kimi(activations="none")
    with pytest.raises(UsageError, match="silently multiplies the experts of weight-only NVFP4 by 0"):
        chosen_launch("8xB300", weights_only, version=version)
    assert chosen_launch("8xB300", version=version).engine == "vllm"
    assert chosen_launch("8xB300", weights_only).version == "0.32.0"
    assert warned(chosen_launch("8xB300", weights_only, engine="sglang"), "54189")
    assert not warned(chosen_launch("8xB300", engine="sglang"), "54189")


def test_a_build_that_reproduces_a_card_has_the_card_s_draft_in_its_own_spelling():
    found = chosen_launch("4xRTX PRO 6000", kimi(experts=192), version="voipmonitor-20260423", draft="auto")
    assert value(found, "speculative") == {
        "model": "lightseekorg/kimi-k2.6-eagle3-mla",
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic",
        "draft_attention_backend": "TRITON_MLA",
        "draft_kv_cache_dtype": "fp8",
    }
    newer = value(chosen_launch("4xRTX PRO 6000", kimi(experts=192), draft="auto"), "speculative")
    assert (newer["attention_backend"], newer["kv_cache_dtype"]) == ("TRITON_MLA", "fp8")


def test_text_only_leaves_the_vision_tower_out_of_the_count():
    def parts(found):
        return {share.name for share in found.fit.weights}

    seeing, blind = chosen_launch("8xB200"), chosen_launch("8xB200", text_only=True)
    assert parts(seeing) - parts(blind) == {"vision tower"}
    assert blind.fit.kv_tokens > seeing.fit.kv_tokens
    sglang = chosen_launch("8xB200", engine="sglang", text_only=True)
    assert "vision tower" in parts(sglang)
    assert warned(sglang, "no flag for --text-only")


def test_remote_code_only_where_the_tokenizer_needs_it_with_the_files_that_run(tmp_path):
    (tmp_path / "tokenization_kimi.py").write_text("print('hello')\n")
    found = chosen_launch("8xB200", kimi(folder=tmp_path, remote_tokenizer=True))
    assert value(found, "trust_remote_code") is True
    digest = hashlib.sha256(b"print('hello')\n").hexdigest()
    assert warned(found, f"tokenization_kimi.py sha256:{digest}")
    assert "--trust-remote-code" not in chosen_launch("8xB200", kimi(folder=tmp_path)).words


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_name_on_the_hub_is_pinned(engine):
    commit = "0123456789" * 4
    found = chosen_launch("8xB300", kimi(remote_tokenizer=True), hub=f"moonshotai/Kimi-K2.6@{commit}", engine=engine)
    assert "moonshotai/Kimi-K2.6" in found.words
    assert value(found, "revision") == commit
    assert value(found, "code_revision") == (commit if engine == "vllm" else None)
    assert found.name == "Kimi-K2.6"
    assert warned(found, f"runs Python files of moonshotai/Kimi-K2.6 at commit {commit}")


def test_the_commit_of_the_folder_is_pinned():
    found = chosen_launch("8xB200", kimi(revision="b" * 40, remote_tokenizer=True), hub="moonshotai/Kimi-K2.6")
    assert value(found, "revision") == value(found, "tokenizer_revision") == "b" * 40


def test_set_overrides_adds_and_removes():
    found = chosen_launch(
        "8xB200", settings=["kv-cache-dtype=auto", "prefix_caching=false", "env.NCCL_DEBUG=INFO", "block_size=32"]
    )
    assert value(found, "kv_cache_dtype") == "auto"
    assert "--enable-prefix-caching" not in found.words
    assert found.words[found.words.index("--block-size") + 1] == "32"
    assert value(found, "NCCL_DEBUG") == "INFO"
    assert value(chosen_launch("8xRTX PRO 6000", settings=["env.NCCL_P2P_LEVEL="]), "NCCL_P2P_LEVEL") is None
    assert value(chosen_launch("8xB200", settings=['compilation_config={"mode": 3}']), "compilation_config") == {
        "mode": 3
    }


def test_emulation_is_a_setting_like_others():
    found = launch(kimi("mxfp4"), CPU, LaunchOptions(emulate=True, activations="off"))
    assert value(found, "quantization") == "halfbyte_emulate"
    assert value(found, "HALFBYTE_EMULATE_ACTIVATIONS") == "off"
    assert value(launch(kimi(), CPU, LaunchOptions(emulate=True)), "HALFBYTE_EMULATE_ACTIVATIONS") is None
    assert value(found, "attention_backend") == "CPU_MLA"
    assert value(found, "dtype") == "float32"
    assert value(found, "max_model_len") == 4096
    assert value(found, "enforce_eager") is True


def test_arguments_and_json_describe_the_same_launch():
    found = chosen_launch("8xB300", draft="auto", port=8001)
    data = json.loads(json.dumps(plain(found.record(None))))
    assert data["command"] == found.words
    assert found.words[-2:] == ["--port", "8001"]
    assert {row["flag"] for row in data["settings"]} >= {"--tensor-parallel-size", "--speculative-config"}
    assert all(row["reason"] for row in data["settings"])
    assert data["fit"]["fits"]


def test_a_draft_takes_its_memory():
    without, with_draft = chosen_launch("8xB200"), chosen_launch("8xB200", draft="auto")
    assert with_draft.fit.kv_tokens < without.fit.kv_tokens
    pruned = chosen_launch("4xRTX PRO 6000", kimi(experts=192), draft="auto")
    assert value(pruned, "speculative")["attention_backend"] == "TRITON_MLA"
    assert value(pruned, "decode_context_parallel") == 4


REFUSED = [
    ("8xB200", {"format": "mxfp4"}, {}, "only AMD's MI350X and MI355X serve Quark's MXFP4", "moe_backend=emulation"),
    ("8xB200", {"format": "mxfp4"}, {"engine": "sglang"}, "only on AMD", "INT4 on any"),
    ("8xMI355X", {"format": "mxfp4_ct"}, {}, "has no AMD kernel for compressed-tensors' MXFP4", "mxfp4-wafer"),
    ("8xMI300X", {"format": "mxfp4_ct"}, {}, "has no AMD kernel for compressed-tensors' MXFP4", "INT4 release"),
    ("8xMI355X", {"format": "mxfp4_ct"}, {"engine": "atom"}, "atom is not known to load", "mxfp4-wafer"),
    ("8xB200", {"format": "mxfp4_ct"}, {"engine": "sglang"}, "sglang is not known to load", "vLLM on NVIDIA"),
    ("8xMI355X", {}, {}, "AMD GPUs have no kernel for it", "moe_backend=emulation"),
    ("8xMI355X", {}, {"engine": "atom"}, "AMD GPUs have no kernel for it", "MXFP4 on these GPUs"),
    ("8xH200", {}, {"engine": "sglang"}, "SGLang serves NVFP4 only on Blackwell", "use vLLM, which runs NVFP4"),
    ("8xMI355X", {"format": "int4"}, {"engine": "sglang", "tp": 8}, "64 attention heads over 8 GPUs are 8", "--tp 4"),
    ("8xB200", {"experts": 190}, {"ep": True}, "190 experts cannot be divided evenly among 8 GPUs: 6", "multiple of 8"),
    ("8xMI355X", {"format": "int4"}, {"ep": True}, "do not support expert parallelism", "leave out --ep"),
    ("8xB200", {"uneven": True}, {}, "cannot load layers with different numbers of experts", "without --spread"),
    ("8xB300", {}, {"engine": "sglang", "dcp": 8}, "supported only with vLLM, not with sglang", "--engine vllm"),
    ("8xMI350X", {"format": "mxfp4"}, {"engine": "atom", "draft": "auto"}, "a separate draft", "--engine vllm-rocm"),
    ("8xB200", {}, {"engine": "atom"}, "ATOM does not run on B200", "choose one of vllm, sglang"),
    ("8xB200", {}, {"engine": "trtllm"}, "unknown engine 'trtllm'", "vllm"),
    ("8xB200", {}, {"version": "0.19.1"}, "vLLM 0.19.1 is too old for kimi-k2.6, which needs 0.25.0", "0.32.0"),
    ("8xB200", {"family": "kimi-k2.5"}, {"version": "0.17.0", "draft": "auto"}, "with a draft, which needs 0.18.0", ""),
    ("8xB200", {"family": "kimi-k2.7-code"}, {"version": "0.19.0"}, "which needs 0.19.1 or newer", ""),
    ("8xB200", {}, {"version": "newest"}, "'newest' is not a valid version of vLLM", "ngc-26.03.post1"),
    ("8xB200", {}, {"version": "1abc;x"}, "'1abc;x' is not a valid version of vLLM", "vllm==0.32.0"),
    ("8xB200", {}, {"tp": 3}, "64 attention heads cannot be split over 3 GPUs", "choose one of 1, 2, 4, 8"),
    ("8xB200", {}, {"tp": 16}, "--tp 16 needs more than 8xB200", "at most --tp 8"),
    ("8xB200", {}, {"tp": 8, "dcp": 3}, "--dcp 3 does not divide the 8 GPUs", "choose one of 1, 2, 4, 8"),
    ("8xB200", {}, {"context": 300_000}, "--context 300,000 exceeds the model's context of 262,144 tokens", "262144"),
    ("8xB200", {}, {"port": 70_000}, "invalid port 70000", "1 to 65535"),
    ("8xB200", {}, {"settings": ["kv_cache_dtyp=fp8"]}, "vLLM has no setting 'kv_cache_dtyp'", "'kv_cache_dtype'?"),
    ("8xB200", {}, {"settings": ["fp8"]}, "'fp8' is not of the form name=value", "name=value"),
    ("8xB200", {"family": "kimi-k2-thinking"}, {"draft": "auto"}, "no Eagle3 draft is known for kimi-k2-thinking", ""),
    ("8xB200", {}, {"hub": "a/b@main"}, "'a/b@main' is not a valid Hub name", "branches can move"),
    ("8xB200", {}, {"hub": "--help"}, "'--help' is not a valid Hub name", "organization/name"),
    ("8xB200", {"remote_tokenizer": True}, {"hub": "a/b"}, "would run unpinned remote code from a/b", "a/b@COMMIT"),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "changes", "options", "what", "fix"), REFUSED)
def test_impossible_launches_are_refused(machine, changes, options, what, fix):
    with pytest.raises(UsageError) as caught:
        chosen_launch(machine, kimi(**changes), **options)
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert "{" not in caught.value.what + caught.value.fix
    assert "\n" not in caught.value.what


def test_naming_a_backend_lifts_the_refusal_with_a_warning():
    found = chosen_launch("8xB200", kimi("mxfp4"), settings=["moe_backend=emulation"])
    assert value(found, "moe_backend") == "emulation"
    assert warned(found, "no run of this format on these GPUs is published")
    assert value(chosen_launch("8xMI355X", kimi(), settings=["moe_backend=emulation"]), "moe_backend") == "emulation"


@pytest.mark.parametrize(
    ("machine", "changes", "options", "what"),
    [
        ("4xRTX PRO 6000", {}, {}, "it does not fit on 4xRTX PRO 6000: each GPU needs"),
        ("1xH200", {"experts": 192}, {}, "it does not fit on 1xH200"),
        ("4xRTX PRO 6000", {"experts": 192}, {"concurrency": 64, "context": 262_144}, "not for 64 times 262,144"),
    ],
)
def test_a_launch_that_does_not_fit_is_a_failed_check_with_advice(machine, changes, options, what):
    with pytest.raises(CheckFailedError) as caught:
        chosen_launch(machine, kimi(**changes), **options)
    assert what in caught.value.what
    assert caught.value.fix
    assert caught.value.exit_code == 1


def test_leftover_gpus_are_reported():
    found = chosen_launch("8xB300", tp=4)
    assert found.gpus.count == 4
    assert warned(found, "4 of 8xB300 are used: start 2 copies")
    assert not any("stay" in note.text for note in found.warnings)
    assert warned(
        chosen_launch("7xB300", kimi(experts=192), tp=2),
        "2 of 7xB300 are used: start 3 copies on different ports and GPUs",
    )
    assert warned(
        chosen_launch("7xB300", kimi(experts=192), tp=2), "copies on different ports and GPUs and 1 GPU stays unused"
    )


@pytest.mark.parametrize(("count", "tp", "free"), [(3, 2, "1 GPU stays"), (5, 4, "1 GPU stays"), (6, 4, "2 GPUs stay")])
def test_gpu_counts_that_do_not_divide_the_heads(count, tp, free):
    found = chosen_launch(f"{count}xB300", kimi(experts=192))
    assert (found.gpus.count, value(found, "tensor_parallel")) == (tp, tp)
    assert warned(found, f"{tp} of {count}xB300 are used: {free} unused")
    assert not warned(found, "copies")


def test_an_unknown_number_of_heads_is_not_divided():
    served = kimi(experts=192)
    found = chosen_launch("6xB300", replace(served, heads=None, needs=replace(served.needs, heads=None)))
    assert found.gpus.count == 4
    reason = next(one.reason for one in found.arguments if one.name == "tensor_parallel")
    assert reason.startswith("tensor parallelism over 4 GPUs; config.json has no number of attention heads")
    assert all("None" not in one.reason for one in found.arguments)


def test_an_unknown_context_must_be_specified():
    served = kimi()
    silent = replace(served, context=None, needs=replace(served.needs, context=None))
    with pytest.raises(UsageError, match="has no maximum context length") as caught:
        chosen_launch("8xB300", silent)
    assert caught.value.fix == "set it with --context N"
    assert value(chosen_launch("8xB300", silent, context=32_768), "max_model_len") == 32_768


def test_more_gpus_than_a_machine_has():
    found = chosen_launch("16xB200")
    assert found.gpus.count == 8
    assert warned(found, "16xB200 are usually 2 machines with 8 GPUs each, and this script is for one machine: run it")
    assert warned(chosen_launch("16xB200", tp=16), "--tp 16 over several machines needs a cluster")
    assert warned(chosen_launch("8xGB200"), "8xGB200 are usually 2 machines with 4 GPUs each")
    assert not warned(chosen_launch("8xB200"), "machines")
    with pytest.raises(CheckFailedError) as caught:
        chosen_launch("16xH100")
    assert "16xH100 (2 machines, for which `serve` cannot write a script)" in caught.value.fix


def test_every_engine_has_a_default_version_and_an_image():
    for name, row in engines().items():
        assert row.version, name
        assert row.image, name
    assert chosen_launch("8xMI350X", kimi("int4"), engine="sglang").container.image.endswith("-rocm700-mi35x")
    assert chosen_launch("8xB200", engine="sglang").container.image == "lmsysorg/sglang:v0.5.9"
