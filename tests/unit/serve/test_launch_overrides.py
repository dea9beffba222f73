"""`--set`: values have their setting's type, names are checked, and settings with their own option are rejected."""

import pytest
from kimi_served import kimi

from halfbyte.errors import UsageError
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.launch import launch
from halfbyte.serve.launch_data import SWITCH, engines, setting_types
from halfbyte.serve.launch_facts import LaunchOptions

OWN = {
    "tensor_parallel": "--tp N",
    "decode_context_parallel": "--dcp N",
    "decode-context-parallel": "--dcp N",
    "expert_parallel": "--ep",
    "max_model_len": "--context N",
    "port": "--port N",
    "revision": "--hub ORGANIZATION/NAME@COMMIT",
    "language_model_only": "--text-only",
}


def refused(*given, machine="8xB200", **options):
    with pytest.raises(UsageError) as caught:
        launch(kimi(), parse_gpus(machine), LaunchOptions(settings=given, **options))
    assert caught.value.where == "--set"
    assert "\n" not in caught.value.what
    return caught.value


@pytest.mark.parametrize(("name", "option"), OWN.items())
def test_a_setting_with_its_own_option_names_the_option(name, option):
    assert refused(f"{name}=64").fix == f"write {option}"


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ("gpu_memory_utilization=abc", "must be a fraction greater than 0 and at most 1, not 'abc'", "=0.9"),
        ("gpu_memory_utilization=5", "must be a fraction greater than 0 and at most 1, not '5'", "=0.9"),
        ("gpu_memory_utilization=0", "a fraction greater than 0", "=0.9"),
        ("gpu_memory_utilization=.nan", "a fraction greater than 0", "=0.9"),
        ("gpu_memory_utilization=true", "a fraction greater than 0", "=0.9"),
        ("gpu_memory_utilization=", "gpu_memory_utilization needs a value", "=VALUE"),
        ("max_num_seqs=", "max_num_seqs needs a value", "=VALUE"),
        ("max_num_batched_tokens=", "max_num_batched_tokens needs a value", "=VALUE"),
        ("block_size=7", "block_size must be a multiple of 16, not '7'", "=16, or a multiple of it"),
        ("max_num_seqs=0", "max_num_seqs must be an integer of at least 1, not '0'", "=64"),
        ("max_num_seqs=1e3", "an integer of at least 1, not '1e3'", "=64"),
        ("max_num_batched_tokens=abc", "an integer of at least 1, not 'abc'", "=64"),
        ("max_num_batched_tokens=[1]", "an integer of at least 1, not '[1]'", "=64"),
        ("max_num_batched_tokens=true", "an integer of at least 1, not 'true'", "=64"),
        ("moe_backend=true", "moe_backend must be a word, not 'true'", "=NAME"),
        ("moe_backend=--help", "moe_backend must be a word, not '--help'", "=NAME"),
        (
            "kv_cache_dtype=bogus",
            "'bogus' is not a kv_cache_dtype that this engine and the fit support",
            "auto, float16",
        ),
        ("kv_cache_dtype=fp9", "'fp9' is not a kv_cache_dtype that this engine and the fit support", "'fp8'?"),
        ("mm_encoder_tp_mode=half", "'half' is not a mm_encoder_tp_mode", "data, weights"),
        ("compilation_config=3", "must be a mapping, not '3'", "key"),
        ("mm_processor_cache_gb=-1", "a number of at least 0", "=4"),
        ("enforce_eager=7", "enforce_eager must be true or false, not '7'", "=true or =false"),
        ("env.MODEL=/x", "MODEL is used by the script itself", "when you start the script"),
        ("env.PORT=99", "PORT is used by the script itself", "when you start the script"),
        ("env.arguments=x", "arguments is used by the script itself", "use settings for the rest"),
        ("env.UID=5", "UID is read-only in bash", "leave it out"),
        ("host=$(id)", "host must be a host name or IP address, not '$(id)'", "=127.0.0.1"),
        ("env.X;touch pwned;Y=1", "'X;touch pwned;Y' is not a valid variable name", "env.NAME=value"),
        ("env.X\nY=1", "is not a valid variable name", "env.NAME=value"),
        ("env.1X=1", "'1X' is not a valid variable name", "env.NAME=value"),
        ("env.ü=1", "'ü' is not a valid variable name", "env.NAME=value"),
        ("env.=1", "'' is not a valid variable name", "env.NAME=value"),
    ],
)
def test_values_of_the_wrong_type_and_unknown_names_are_refused(given, what, fix):
    found = refused(given)
    assert what in found.what
    assert fix in found.fix


@pytest.mark.parametrize(
    ("block", "what", "fix"),
    [
        (
            '{"num_speculative_tokens": -50}',
            "num_speculative_tokens must be an integer of at least 1, not '-50'",
            ": 3}'",
        ),
        ('{"num_speculative_tokens": 0}', "an integer of at least 1, not '0'", ": 3}'"),
        ('{"num_speculative_tokens": 2.5}', "an integer of at least 1, not '2.5'", ": 3}'"),
        ('{"num_speculative_tokens": true}', "an integer of at least 1", ": 3}'"),
        ('{"num_speculative_tokens": "3"}', "an integer of at least 1", ": 3}'"),
        ('{"num_speculative_tokens": null}', "num_speculative_tokens needs a value", "VALUE}'"),
        ('{"model": "a/other"}', "speculative.model has its own option", "write --draft MODEL"),
        ("", "speculative needs a value, because the fit depends on it", "=VALUE"),
    ],
)
def test_draft_settings_are_checked_inside_their_block(block, what, fix):
    found = refused(f"speculative={block}", draft="auto")
    assert what in found.what
    assert fix in found.fix


def test_a_draft_block_is_merged_into_ours():
    def speculative(*given):
        found = launch(kimi(), parse_gpus("8xB200"), LaunchOptions(draft="a/b", settings=given))
        return next(one.value for one in found.arguments if one.name == "speculative")

    ours = speculative()
    assert ours == {"model": "a/b", "method": "eagle3", "num_speculative_tokens": 3}
    assert speculative('speculative={"method": "x", "extra": 1}') == {**ours, "method": "x", "extra": 1}
    assert speculative('speculative={"method": null}') == {"model": "a/b", "num_speculative_tokens": 3}


def test_choices_of_one_engine_are_refused_for_another():
    assert "bf16" in refused("kv_cache_dtype=fp8", engine="sglang").fix
    assert "bfloat16" in refused("kv_cache_dtype=bf16", engine="vllm").fix


def test_every_setting_has_a_type_and_switches_are_switches():
    flags = {name: flag for row in engines().values() for name, flag in row.flags.items()}
    assert set(setting_types()) == {*flags, "port"}
    for name, flag in flags.items():
        assert (setting_types()[name].type == "switch") == flag.endswith(SWITCH), name
