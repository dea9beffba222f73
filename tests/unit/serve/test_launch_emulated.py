"""`--emulate` on GPUs: BF16 weights are counted, settings are the plugin's, and no 4-bit kernel is named."""

from dataclasses import replace

import pytest
from kimi_served import kimi, needs

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.machine.resources import memory_facts
from halfbyte.serve.fit import host_memory_nbytes, weights_nbytes
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.launch import CPU, engines_for, launch
from halfbyte.serve.launch_facts import LaunchOptions

FORMATS = ("nvfp4", "mxfp4", "mxfp4_ct", "int4")
SMALL = 96  # experts, so that they fit in BF16 too


def chosen_launch(machine, format="nvfp4", experts=SMALL, **options):
    served = kimi(format, experts=experts, source_experts=None)  # as if never pruned: more is said of such ones
    return launch(served, parse_gpus(machine), LaunchOptions(emulate=True, **options))


def values(found):
    return {one.name: one.value for one in (*found.environment, *found.arguments)}


def routed(found):
    return next(share.of_nbytes for share in found.fit.weights if share.name == "routed experts")


def test_expanded_weights_are_counted():
    packed, expanded = needs(), needs().expanded_to_bf16()
    parameters = 384 * 60 * 3 * 7168 * 2048
    assert next(part.nbytes for part in expanded.parts if part.name == "routed experts") == 2 * parameters
    assert expanded.routed[0].nbytes == pytest.approx(2 * parameters, rel=1e-9)
    others = [[part for part in each.parts if part.name != "routed experts"] for each in (packed, expanded)]
    assert others[0] == others[1]  # they are BF16 in the file


def test_a_model_that_fits_in_4_bits_only_is_refused():
    assert launch(kimi(), parse_gpus("8xB200"), LaunchOptions()).fit.fits
    with pytest.raises(CheckFailedError, match="it does not fit on 8xB200: each GPU needs"):
        chosen_launch("8xB200", experts=384)


@pytest.mark.parametrize("machine", ["8xB200", "8xB300", "8xH200", "8xRTX PRO 6000", "8xMI355X"])
@pytest.mark.parametrize("format", FORMATS)
def test_the_settings_are_those_of_the_plugin_on_every_gpu(machine, format):
    found = chosen_launch(machine, format)
    chosen = values(found)
    assert (chosen["quantization"], chosen["enforce_eager"]) == ("halfbyte_emulate", True)
    assert "moe_backend" not in chosen
    assert "compilation_config" not in chosen
    assert not any("MOE" in name or "FP4" in name for name in chosen)
    assert routed(found) == 2 * SMALL * 60 * 3 * 7168 * 2048


@pytest.mark.parametrize("machine", ["8xB200", "4xB200", "8xB300", "8xH200", "8xRTX PRO 6000", "8xMI355X"])
@pytest.mark.parametrize("format", FORMATS)
def test_no_warnings_about_kernels_that_do_not_run(machine, format):
    said = " ".join(note.text for note in chosen_launch(machine, format).warnings)
    for word in ("Marlin", "FlashInfer", "NaN", "slower than the INT4", "'!!!!'", "no run of this format"):
        assert word not in said
    pruned = launch(kimi(format, experts=SMALL), parse_gpus(machine), LaunchOptions(emulate=True))
    assert not any("tuned MoE kernel" in note.text for note in pruned.warnings)
    native = launch(kimi(experts=SMALL), parse_gpus("8xH200"), LaunchOptions())
    assert any("Marlin" in note.text for note in native.warnings)


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ({"ep": True}, "--emulate does not support expert parallelism", "leave out --ep"),
        ({"settings": ["enforce_eager=false"]}, "--emulate needs enforce_eager", "leave out --set enforce_eager"),
        ({"settings": ["enforce_eager="]}, "--emulate needs enforce_eager", "leave out --set enforce_eager"),
        ({"engine": "sglang"}, "--emulate is a vLLM plugin", "--engine vllm"),
        (
            {"version": "0.31.0"},
            "vLLM 0.31.0 is too old for kimi-k2.6 with --emulate, which needs 0.32.0",
            "use vLLM 0.32.0",
        ),
    ],
)
def test_emulation_that_the_plugin_refuses_is_refused_before_the_start(options, what, fix):
    with pytest.raises(UsageError) as caught:
        chosen_launch("8xB200", **options)
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_the_plugin_needs_its_version_on_a_cpu_and_on_rocm_as_well():
    assert "vllm-rocm" in engines_for(parse_gpus("8xMI355X"))
    with pytest.raises(
        UsageError, match=r"vLLM 0\.16\.0\+cpu is too old for kimi-k2\.6 with --emulate, which needs 0\.32\.0"
    ):
        launch(kimi(), CPU, LaunchOptions(emulate=True, version="0.16.0+cpu"))
    with pytest.raises(UsageError, match=r"0\.31\.0\+rocm700 is too old for kimi-k2\.6 with --emulate"):
        chosen_launch("8xMI355X", version="0.31.0+rocm700")
    assert chosen_launch("8xMI355X", version="0.32.1+rocm700").engine == "vllm-rocm"


def test_a_cpu_s_memory_is_counted_before_the_engine_starts():
    """Experts are BF16, the rest is FP32 as --dtype says."""
    expanded = needs().expanded_to_bf16()
    experts = 2 * 384 * 60 * 3 * 7168 * 2048
    rest = expanded.weights_nbytes - experts
    assert weights_nbytes(expanded, emulate=True, dtype="float32") == experts + 2 * rest
    assert weights_nbytes(expanded, emulate=True, dtype="bfloat16") == experts + rest
    assert weights_nbytes(expanded, emulate=False, dtype="float32") == 2 * (experts + rest)
    enough = replace(CPU, memory_nbytes=experts + 2 * rest)
    assert launch(kimi(), enough, LaunchOptions(emulate=True)).fit is None
    with pytest.raises(
        CheckFailedError, match="it does not fit this machine: the weights expanded to BF16 need"
    ) as caught:
        launch(kimi(), replace(enough, memory_nbytes=enough.memory_nbytes - 1), LaunchOptions(emulate=True))
    assert "more memory" in caught.value.fix
    with pytest.raises(CheckFailedError, match="the weights as float32 need"):
        launch(kimi("bf16"), enough, LaunchOptions())


def test_this_machine_s_memory_is_known():
    memory = memory_facts()
    assert 0 < host_memory_nbytes() <= memory.total_nbytes
