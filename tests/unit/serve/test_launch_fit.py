"""The fit and the script describe the same server: `--set` values are counted, and counted values are written."""

import itertools

import pytest
from kimi_served import kimi

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.serve.fit import Load
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.launch import engines_for, launch
from halfbyte.serve.launch_facts import LaunchOptions

RTX = "8xRTX PRO 6000"


def chosen_launch(machine=RTX, served=None, **options):
    return launch(served or kimi("int4"), parse_gpus(machine), LaunchOptions(**options))


def value(found, name):
    return next((one.value for one in found.arguments if one.name == name), None)


@pytest.mark.parametrize("machine", ["8xB200", "8xB300", "8xH200", RTX, "8xMI355X"])
def test_every_script_has_the_numbers_of_its_fit(machine):
    names = engines_for(parse_gpus(machine))
    all_options = ({}, {"concurrency": 2}, {"context": 32_768}, {"settings": ["max_num_seqs=16"]})
    for name, options in itertools.product(names, all_options):
        found = chosen_launch(machine, engine=name, **options)
        assert value(found, "max_num_seqs") == found.fit.concurrency, (name, options)
        counted = next(share.why for share in found.fit.reserve if share.name == "activations")
        assert counted == f"of {value(found, 'max_num_batched_tokens'):,} tokens at once", (name, options)
        assert found.fit.utilization == value(found, "gpu_memory_utilization"), (name, options)
    assert value(chosen_launch(machine), "max_num_seqs") == Load().sequences


def test_vllms_default_requests_do_not_fit_where_the_workspace_grows_with_them():
    with pytest.raises(CheckFailedError) as caught:
        chosen_launch(settings=["max_num_seqs=1024"], dcp=8)
    assert "it does not fit on 8xRTX PRO 6000" in caught.value.what
    assert "--set max_num_seqs=" in caught.value.fix


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ("max_num_seqs=1", 1),
        ("max_num_seqs=256", -1),
        ("max_num_batched_tokens=4096", 1),
        ("max_num_batched_tokens=32768", -1),
        ("gpu_memory_utilization=0.95", 1),
        ("gpu_memory_utilization=0.9", -1),
        ("kv_cache_dtype=bfloat16", -1),
        ("kv_cache_dtype=fp8_ds_mla", -1),
        ("block_size=256", -1),
        ("mm_encoder_tp_mode=data", -1),
    ],
)
def test_the_fit_counts_with_set_values(setting, change):
    before, after = (
        chosen_launch(context=8192).fit.kv_tokens,
        chosen_launch(context=8192, settings=[setting]).fit.kv_tokens,
    )
    assert (after - before) * change > 0


def test_sglangs_memory_share_excludes_the_reserve():
    inside, outside = chosen_launch("8xB200").fit, chosen_launch("8xB200", engine="sglang").fit
    assert inside.kv_nbytes == int(inside.gpus.memory_nbytes * 0.9) - inside.weights_nbytes - inside.reserve_nbytes
    assert outside.kv_nbytes == int(outside.gpus.memory_nbytes * 0.85) - outside.weights_nbytes
    assert any("outside the memory share, which leaves 28.7 GB for it" in line for line in outside.lines())
    assert [one.record().gpu_reserve_outside for one in (inside, outside)] == [False, True]
    with pytest.raises(
        CheckFailedError, match=r"a memory share of 0\.99 leaves 1\.9 GB, not \S+ GB for activations"
    ) as caught:
        chosen_launch("8xB200", engine="sglang", settings=["gpu_memory_utilization=0.99"])
    said = caught.value.fix.partition(" to `halfbyte serve`")[0].rpartition("--set ")[2]
    assert chosen_launch("8xB200", engine="sglang", settings=[said]).fit.fits


def test_atom_loads_no_vision_tower():
    vllm, atom = (chosen_launch("8xMI355X", kimi("mxfp4"), engine=name).fit for name in ("vllm-rocm", "atom"))
    assert {one.name for one in vllm.weights} - {one.name for one in atom.weights} == {"vision tower"}


def test_the_vision_tower_is_split_as_vllm_does_by_default():
    split = chosen_launch(settings=["mm_encoder_tp_mode=weights"]).fit
    assert chosen_launch(settings=["mm_encoder_tp_mode="]).fit.weights == split.weights


def test_the_block_size_is_the_set_value():
    found = chosen_launch(settings=["block_size=256"]).fit
    assert found.kv_tokens % 256 == 0
    assert any("in blocks of 256" in line for line in found.lines())


def test_the_fit_counts_the_configured_draft_tokens():
    few, many = (
        chosen_launch(draft="auto", context=8192, settings=[f'speculative={{"num_speculative_tokens": {tokens}}}'])
        for tokens in (1, 7)
    )
    assert few.fit.kv_tokens > many.fit.kv_tokens
    few, many = (
        chosen_launch("8xB200", engine="sglang", draft="auto", settings=[f"speculative_tokens={tokens}"])
        for tokens in (4, 64)
    )
    assert few.fit.reserve_nbytes < many.fit.reserve_nbytes
    with pytest.raises(UsageError, match="without --draft"):
        chosen_launch(settings=['speculative={"method": "x"}'])


def test_contradictory_numbers_of_requests_are_refused():
    assert value(chosen_launch(concurrency=1, settings=["max_num_seqs=4"]), "max_num_seqs") == 4
    with pytest.raises(UsageError, match="--concurrency 8 exceeds max_num_seqs=4"):
        chosen_launch(concurrency=8, settings=["max_num_seqs=4"])
    with pytest.raises(UsageError, match=r"fewer batched tokens \(64\) than concurrent requests \(128\)"):
        chosen_launch(settings=["max_num_batched_tokens=64"])


def test_a_draft_gets_the_memory_that_is_not_accounted_for():
    assert value(chosen_launch(), "gpu_memory_utilization") == 0.94
    found = chosen_launch(draft="auto")
    assert value(found, "gpu_memory_utilization") == found.fit.utilization == 0.9
    left = (0.94 - 0.9) * found.gpus.memory_nbytes
    assert left > 2.4e9


def test_the_served_name_is_the_one_that_clients_send():
    assert chosen_launch(settings=["served_name=kimi"]).name == "kimi"
