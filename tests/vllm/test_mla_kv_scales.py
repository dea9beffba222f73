"""Which KV scales vLLM applies to latent attention (MLA), tested with its own loader and values other than 1.

`MLAAttention` has the parameters, and ModelOpt's KV method reads them. In vLLM 0.25 to 0.32 the names do not match:
`AutoWeightsLoader` renames `self_attn.k_proj.k_scale` to `self_attn.attn.k_scale`, then DeepSeek's `load_weights`
renames that to `self_attn.attn.attn.k_scale`, which does not exist. vLLM warns, drops the scale and uses 1. vLLM 0.17
to 0.24 rename once and apply the scale. docs/formats.md states this, and a vLLM that behaves differently fails here.
"""

import json
from pathlib import Path

import pytest
import torch
from checkpoints import planned, recipe_of
from load_kv_scales import RUNS, K, V

from halfbyte.checkpoint.folder import open_checkpoint

KIMI_MINI = Path(__file__).parents[2] / "models" / "kimi-mini"
UNSET = -1.0  # vLLM's mark of a scale that no checkpoint has set
DROPPED = [run for run, (_, _, twice) in RUNS.items() if twice]


@pytest.fixture(scope="module")
def runs(in_vllm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kv")
    case = planned(open_checkpoint(KIMI_MINI), recipe_of("nvfp4 modelopt, wafer's scope"))
    (folder / "case.json").write_text(json.dumps(case))
    in_vllm(Path(__file__).with_name("load_kv_scales.py"), folder / "case.json", folder / "results.json")
    found = json.loads((folder / "results.json").read_text())
    assert found["layers"] == 6
    return {name: {key: _of_all_layers(rows, 6) for key, rows in run.items()} for name, run in found["runs"].items()}


def _of_all_layers(rows, layers):
    assert len(rows) == layers
    assert all(row == rows[0] for row in rows)
    return rows[0]


@pytest.mark.parametrize("run", DROPPED)
def test_vllm_032_drops_calibrated_kv_scales_under_every_name(runs, run):
    assert runs[run]["parameters"] == [UNSET, UNSET]
    assert runs[run]["used"] == [1.0, 1.0, 1.0]


def test_auto_is_fp8_where_the_config_declares_it(runs):
    assert runs["auto"]["cache"] == "fp8_e4m3"


@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_a_loader_that_renames_once_applies_them(runs, cache):
    k, v = (torch.tensor(value, dtype=torch.bfloat16).item() for value in (K, V))  # the parameter has the model's type
    assert runs[f"renamed once, {cache}"]["parameters"] == [k, v]
    assert runs[f"renamed once, {cache}"]["used"] == [k, v, k]


def test_a_cache_in_bf16_ignores_them(runs):
    assert runs["renamed once, bfloat16"]["parameters"] != [UNSET, UNSET]
    assert runs["renamed once, bfloat16"]["used"] == [1.0, 1.0, 1.0]
