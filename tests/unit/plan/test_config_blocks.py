"""The owner of each format parses every quantization config that halfbyte writes.

Quark, compressed-tensors and ModelOpt parse them in separate environments (tests/golden/make_parsed_*.py). The tests
compare their inputs with today's configs, and their results with the meaning of each config. transformers parses them
here, vLLM in tests/vllm/test_config_blocks_parse.py.
"""

import json

import pytest
from config_blocks import BLOCK, FILE, written_blocks

from halfbyte.plan.quantization_config import MODELOPT_FILE

PARSED = sorted(FILE.parent.glob("parsed-*.json"))
OWNERS = {"amd-quark": "quark", "compressed-tensors": "compressed-tensors", "nvidia-modelopt": "modelopt"}
AGAIN = (
    "the configs have changed: run `PYTHONPATH=tests python tests/config_blocks.py`, then "
    "`python tests/golden/regenerate.py --update --only parsed-...` for each parsed-*.json"
)


@pytest.fixture(scope="module")
def blocks():
    return written_blocks()


def of_method(blocks, method):
    return {name: configs for name, configs in blocks.items() if configs[BLOCK]["quant_method"] == method}


def test_the_recorded_peer_inputs_are_up_to_date(blocks):
    assert blocks == json.loads(FILE.read_text()), AGAIN


@pytest.mark.parametrize("path", PARSED, ids=lambda path: path.stem)
def test_a_peer_has_parsed_every_block(path, blocks):
    facts = json.loads(path.read_text())
    given = {name: entry["given"] for name, entry in facts["parsed"].items()}
    assert given == of_method(blocks, OWNERS[facts["peer"]]), AGAIN


def test_every_peer_parses_the_blocks():
    assert {json.loads(path.read_text())["peer"] for path in PARSED} == set(OWNERS)


def readings(peer):
    """Yield each config of a peer and its result, for each of the peer's versions."""
    for path in PARSED:
        facts = json.loads(path.read_text())
        if facts["peer"] == peer:
            yield from ((entry["given"], entry["read"]) for entry in facts["parsed"].values())


def test_quark_reads_the_block_as_it_is_meant():
    for given, read in readings("amd-quark"):
        block, config = given[BLOCK], read["config"]
        assert read["pack_method"] == "reorder"
        assert config["exclude"] == block["exclude"]
        for place in ("weight", "input_tensors"):
            ours, theirs = block["global_quant_config"][place], config["global_quant_config"][place]
            assert (ours is None) == (theirs is None)
            assert ours is None or ours.items() <= theirs.items()


def test_compressed_tensors_reads_the_block_as_it_is_meant():
    for given, read in readings("compressed-tensors"):
        block, config = given[BLOCK], read["config"]
        ours, theirs = (part["config_groups"]["group_0"] for part in (block, config))
        # Its own name for FP8 weights alone; the stored tensors are the same.
        naive = block["format"] == "float-quantized" and ours["input_activations"] is None
        assert read["inferred_format"] == ("naive-quantized" if naive else block["format"])
        assert (config["format"], config["ignore"]) == (block["format"], block["ignore"])
        for place in ("weights", "input_activations"):
            assert ours[place] is None or ours[place].items() <= theirs[place].items()
            assert (ours[place] is None) == (theirs[place] is None)


def test_modelopt_derives_our_block_from_our_file():
    """All but our own name beside its own, and a null that it leaves out."""
    for given, read in readings("nvidia-modelopt"):
        block = json.loads(json.dumps(given[BLOCK]))
        assert block.pop("written_by") == given[MODELOPT_FILE]["written_by"] == {"name": "halfbyte"}
        group = block["config_groups"]["group_0"]
        if group["input_activations"] is None:
            del group["input_activations"]
        assert read["config"] == block


def test_transformers_reads_every_block_of_compressed_tensors(blocks):
    pytest.importorskip("compressed_tensors", reason="comes with vLLM")
    from transformers.quantizers.auto import AutoQuantizationConfig

    for configs in of_method(blocks, "compressed-tensors").values():
        block = configs[BLOCK]
        read = AutoQuantizationConfig.from_dict(json.loads(json.dumps(block))).quantization_config
        assert (read.format, read.ignore) == (block["format"], block["ignore"])


def test_transformers_leaves_modelopts_blocks_to_the_engines(blocks):
    """It has no quantizer for them, and must not treat them as another method's."""
    from transformers.quantizers.auto import AutoHfQuantizer

    for configs in of_method(blocks, "modelopt").values():
        assert not AutoHfQuantizer.supports_quant_method(configs[BLOCK])


def test_producer_stays_modelopt_where_engines_ask_for_it(blocks):
    for configs in of_method(blocks, "modelopt").values():
        for place in (configs[BLOCK], configs[MODELOPT_FILE]):
            assert place["producer"]["name"] == "modelopt"
            assert place["written_by"] == {"name": "halfbyte"}
            assert "written_by" not in place.get("quantization", {})  # TensorRT-LLM takes its keys for settings
