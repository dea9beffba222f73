"""vLLM's own classes parse every quantization config that halfbyte writes, from both files."""

import json
from pathlib import Path

import pytest
from config_blocks import BLOCK, FILE

from halfbyte.plan.quantization_config import MODELOPT_FILE

WRITTEN = json.loads(FILE.read_text())  # tests/unit/plan/test_config_blocks.py compares it with the current output
METHODS = {"modelopt": "modelopt_fp4", "compressed-tensors": "compressed-tensors", "quark": "quark"}


@pytest.fixture(scope="module")
def read(in_vllm):
    printed = in_vllm(Path(__file__).with_name("parse_configs.py"), FILE, "modelopt", "halfbyte")
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("name", WRITTEN)
def test_vllm_parses_the_block(name, read):
    block, found = WRITTEN[name][BLOCK], read["configs"][name][BLOCK]
    assert found["method"] == METHODS[block["quant_method"]]
    if found["method"] == "modelopt_fp4":
        assert (found["quant_method"], found["exclude_modules"]) == (block["quant_algo"], block["ignore"])
        assert (found["kv_cache_quant_algo"] == "FP8") == ("kv_cache_scheme" in block)
    elif found["method"] == "compressed-tensors":
        assert (found["quant_format"], found["ignore"]) == (block["format"], block["ignore"])
    else:
        assert found["exclude"] == block["exclude"]


@pytest.mark.parametrize("name", [name for name in WRITTEN if MODELOPT_FILE in WRITTEN[name]])
def test_vllm_reads_the_same_in_modelopts_file(name, read):
    """Weights-only is rejected there, which no released recipe writes: vLLM 0.32 supports it in config.json alone."""
    found = read["configs"][name]
    if WRITTEN[name][BLOCK]["quant_algo"] == "W4A16_NVFP4":
        assert found[MODELOPT_FILE] == {"refused": "ValueError: Unknown ModelOpt quant algo: W4A16_NVFP4"}
    else:
        assert found[MODELOPT_FILE] == found[BLOCK]


def test_vllm_does_not_know_the_file_of_another_producer(read):
    """This is why `producer` names ModelOpt, and halfbyte's name has a separate key."""
    assert read["producers"]["modelopt"]["method"] == "modelopt_fp4"
    assert read["producers"]["halfbyte"] == {"refused": "KeyError: ''"}  # no method at all
