"""Published commands of Kimi checkpoints: printed verbatim and compared with ours, each difference with a reason."""

import subprocess
from pathlib import Path

import pytest

from halfbyte.serve.launch_data import publications
from halfbyte.serve.published import differences, differences_page, flags_of, recommended

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "serve"
PAGE = ROOT / "docs" / "serve-differences.md"
NAMES = list(publications())


@pytest.mark.parametrize("name", NAMES)
def test_a_published_command_is_printed_to_the_letter(name, halfbyte):
    code, printed, _ = halfbyte("serve", "--like", name)
    assert code == 0
    assert printed == (GOLDEN / f"{name}.sh").read_text()
    assert subprocess.run(["bash", "-n"], input=printed, text=True, check=False).returncode == 0


def test_each_published_command_has_a_golden_file():
    assert sorted(path.stem for path in GOLDEN.glob("*.sh")) == sorted(NAMES)


def test_the_settings_of_published_commands():
    """Copied by hand from the cards, so that a golden file changed together with the data is noticed."""
    assert flags_of(publications()["wafer-k2.6-nvfp4"].command) == {
        "--model": "/model",
        "--tensor-parallel-size": "4",
        "--max-model-len": "8192",
        "--gpu-memory-utilization": "0.85",
        "--trust-remote-code": "",
        "--tool-call-parser": "kimi_k2",
        "--reasoning-parser": "kimi_k2",
        "--enforce-eager": "",
        "--moe-backend": "cutlass",
        "--port": "8001",
    }
    assert "nvcr.io/nvidia/vllm:26.03.post1-py3" in publications()["wafer-k2.6-nvfp4"].command
    assert flags_of(publications()["wafer-k2.6-mxfp4"].command) == {
        "--model": "wafer-ai/Kimi-K2.6-MXFP4",
        "--trust-remote-code": "",
        "--tensor-parallel-size": "8",
        "--kv_cache_dtype": "fp8",
        "--gpu-memory-utilization": "0.90",
        "--max-model-len": "16384",
    }
    assert flags_of(publications()["decart-k2.7-code-nvfp4"].command) == {
        "VLLM_USE_FLASHINFER_MOE_FP4": "1",
        "--model": "decart-ai/Kimi-K2.7-Code-NVFP4",
        "--tensor-parallel-size": "8",
        "--kv-cache-dtype": "fp8",
        "--tool-call-parser": "kimi_k2",
        "--enable-auto-tool-choice": "",
        "--trust-remote-code": "",
    }
    keep192 = flags_of(publications()["0xsero-k2.6-keep192"].command)
    assert keep192["--override-generation-config"] == '{"repetition_penalty":1.12,"temperature":0}'
    assert keep192["--max-num-batched-tokens"] == "8192"
    assert (keep192["--tensor-parallel-size"], keep192["--decode-context-parallel-size"]) == ("4", "4")
    assert (keep192["--max-num-seqs"], keep192["--max-model-len"]) == ("1", "262144")
    assert keep192["--disable-custom-all-reduce"] == ""
    assert "/root/.cache" in publications()["0xsero-k2.6-keep192"].command


@pytest.fixture(scope="module")
def ours():
    """Our own launches for the same checkpoints, GPUs and options; planning a complete Kimi takes seconds."""
    return {name: recommended(row) for name, row in publications().items()}


def test_every_difference_has_a_reason_and_every_reason_a_difference(ours):
    for name, row in publications().items():
        found = differences(row, ours[name])
        assert all(one.reason for one in found), name
        assert set(row.instead) <= {one.flag for one in found}, name


def test_our_differences_from_published_commands(ours):
    flags = {name: {one.flag for one in differences(row, ours[name])} for name, row in publications().items()}
    assert {"--enforce-eager", "--enable-auto-tool-choice"} <= flags["wafer-k2.6-nvfp4"]
    assert flags["wafer-k2.6-mxfp4"] == {"HSA_NO_SCRATCH_RECLAIM", "--max-num-seqs", "--max-num-batched-tokens"}
    assert {"--reasoning-parser", "VLLM_USE_FLASHINFER_MOE_FP4"} <= flags["decart-k2.7-code-nvfp4"]
    kept = {"--override-generation-config", "--max-num-batched-tokens", "--disable-custom-all-reduce", "--moe-backend"}
    assert not kept & flags["0xsero-k2.6-keep192"]


def test_the_card_of_192_experts_is_met_by_what_we_recommend(ours):
    """It says 811,000 tokens, without the share of memory; docs/log.md says what another share would make of it."""
    found = ours["0xsero-k2.6-keep192"].fit
    assert (found.utilization, found.concurrency, found.kv_tokens) == (0.9, 1, 812_288)


def test_the_page_of_differences_is_up_to_date(ours):
    page = differences_page({name: (row, ours[name]) for name, row in publications().items()})
    assert PAGE.read_text() == page, "fix: python scripts/serve_differences.py"
