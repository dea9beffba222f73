"""Errors of published cards: claims that contradict the files are impossible."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from card_evidence import everything, pruned, put, write_out

from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.record import plain
from halfbyte.publish.card.figures import storage
from halfbyte.publish.card.sections import speed
from halfbyte.publish.card.sections.evaluation import contradicts_itself
from halfbyte.publish.card.write import write_card
from halfbyte.release.gate import judge

WRONG_WORDS = ("lossless", "will not work", "positional ceiling", "pack_method default", "z =")


@pytest.fixture
def card(tmp_path: Path) -> str:
    return write_card(write_out(tmp_path / "out", everything())).read_text()


def row(card: str, name: str) -> str:
    return next(line for line in card.splitlines() if line.startswith(f"| {name} |"))


@pytest.mark.parametrize("kind", ["nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct", "bf16", "int4-k2.6"])
def test_no_card_says_any_of_it(tmp_path: Path, kind: str) -> None:
    text = write_card(write_out(tmp_path / "out", everything(), kind=kind)).read_text().lower()
    assert not [words for words in WRONG_WORDS if words in text]


def test_routers_are_what_the_headers_say_whatever_a_recipe_says(tmp_path: Path) -> None:
    evidence = everything()
    evidence["plan"]["recipe"]["roles"]["router"] = "quantize"
    text = write_card(write_out(tmp_path / "out", evidence, kind="mxfp4")).read_text()
    assert row(text, "Routers").startswith(
        "| Routers | BF16 and F32, not quantized: no engine supports quantized routers"
    )
    assert "router" not in row(text, "Quantized linear layers")
    assert row(text, "router").split(" | ")[2] == "bf16, f32"


def test_nothing_is_said_of_pack_method_but_what_config_says(tmp_path: Path) -> None:
    out = write_out(tmp_path / "out", everything(), kind="mxfp4")
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"]["export"]["pack_method"] = "reorder"
    (out / "config.json").write_text(json.dumps(config))
    put(out, everything())
    text = write_card(out).read_text()
    assert [line.strip(" ,") for line in text.splitlines() if "pack_method" in line] == ['"pack_method": "reorder"']


def test_the_context_is_the_models_not_the_servers(card: str) -> None:
    assert row(card, "Context") == "| Context | 262,144 tokens (RoPE scaling yarn, factor 64 over 4,096) |"
    assert "32,768 |" in row(card, "8xH200")  # the configured context of that server
    assert "32,768" not in row(card, "Context")


def test_hopper_runs_nvfp4_through_marlin(card: str) -> None:
    said = row(card, r"NVIDIA Hopper (H100, H200)")
    assert "works in vLLM, through Marlin as W4A16" in said
    assert "no FP4 speedup" in said


def test_weights_only_is_not_called_four_bit_activations(tmp_path: Path) -> None:
    out = write_out(tmp_path / "out", everything())
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = None
    (out / "config.json").write_text(json.dumps(config))
    put(out, everything())
    text = write_card(out).read_text()
    assert "not quantized (BF16)" in row(text, "Activations")
    assert "4-bit weights and activations" not in text


def test_each_spelling_of_mxfp4_has_its_own_hardware(tmp_path: Path) -> None:
    quark = write_card(write_out(tmp_path / "quark", everything(), kind="mxfp4")).read_text()
    assert "4-bit weights and activations" in row(quark, "AMD MI350X, MI355X (CDNA4)")
    other = write_card(write_out(tmp_path / "other", everything(), kind="mxfp4_ct")).read_text()
    assert "MI350X, MI355X (CDNA4)" not in other
    assert "no known engine support for the compressed-tensors layout" in row(other, "AMD")
    assert "Marlin as W4A16" in row(other, "NVIDIA Hopper, Ada, Ampere (sm_75 and later)")
    assert "quantizes activations to MXFP4" in row(other, "NVIDIA Blackwell (B200, B300, GB200, RTX PRO 6000)")


def test_weights_only_mxfp4_of_quark_leaves_activations_alone(tmp_path: Path) -> None:
    out = write_out(tmp_path / "out", everything(), kind="mxfp4")
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"]["global_quant_config"] = {"input_tensors": None}
    (out / "config.json").write_text(json.dumps(config))
    put(out, everything())
    text = write_card(out).read_text()
    assert "not quantized (BF16)" in row(text, "Activations")
    assert "4-bit weights and activations" not in text


def test_both_units_are_computed() -> None:
    assert storage(590_779_958_144) == "590.8 GB (550.2 GiB)"
    assert storage(590_000_000_000) == "590.0 GB (549.5 GiB)"
    assert storage(1_029_173_256_720) == "1,029.2 GB (958.5 GiB)"
    assert storage(22_292_384) == "22.3 MB (21.3 MiB)"


def test_a_difference_that_does_not_follow_is_not_printed(tmp_path: Path) -> None:
    """As the card that prints +0.40 and z = 1.26 of two scores from which neither follows."""
    evidence = everything()
    evidence["eval"]["tasks"][0]["comparisons"]["exact_match,strict-match"]["difference"] = 0.004
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    assert "inconsistent in eval.json" in row(text, "`gsm8k_cot`")
    assert "+0.40 pp" not in text


def test_what_contradicts_itself() -> None:
    pair = Evaluation.of(everything()["eval"]).tasks[0].deciding("exact_match,strict-match")
    assert pair is not None
    assert not contradicts_itself(pair)
    assert contradicts_itself(replace(pair, difference=0.0040))
    assert contradicts_itself(replace(pair, interval=(0.001, 0.002)))


def test_no_z_is_printed(card: str) -> None:
    evaluation = card[card.index("## Evaluation") : card.index("## Comparison")]
    assert not re.search(r"\bz\b", evaluation)
    assert "-0.37" not in card  # the fixture's z of unpaired scores
    assert "0.94" not in evaluation.replace("0.94%", "")


@pytest.mark.parametrize(
    ("server", "why"),
    [({"emulated": True, "device": "gpu"}, "emulates its number format"), ({"device": "cpu"}, "runs on a CPU")],
)
def test_an_emulated_server_supports_no_claim_even_if_the_file_forgot(tmp_path: Path, server: dict, why: str) -> None:
    evidence = everything()
    evidence["bench"]["servers"]["A"] |= {"emulated": False, **server}
    evidence["bench"]["no_claim_because"] = ""
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    assert "**No performance claim**, because the server " + why in text
    assert "14.4 %" not in text


def test_a_gpu_that_computes_the_format_may_claim(tmp_path: Path) -> None:
    evidence = everything()
    evidence["bench"]["servers"]["A"] |= {"emulated": False, "device": "gpu"}
    evidence["bench"]["no_claim_because"] = ""
    assert speed.no_claim_because(Benchmark.of(evidence["bench"])) is None
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    assert "No performance claim" not in text
    assert "- A gives at least 14.4 % more output tokens a second" in text
    assert "The number format was emulated" not in text


def test_loops_that_nobody_measured_are_a_warning(tmp_path: Path) -> None:
    evidence = pruned()
    del evidence["loops"]
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    warning = text[text.index("> [!WARNING]") : text.index("## At a glance")]
    assert "**The loop rate of this model was not measured.**" in warning
    assert "halfbyte loops" not in warning  # which is for its maker, not for its reader


def test_few_loops_are_no_warning(tmp_path: Path) -> None:
    evidence = pruned()
    evidence["loops"] |= {"loops": 0, "share": 0.0, "low": 0.0, "high": 0.1072, "short": 0, "flagged": False}
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    assert "[!WARNING]" not in text
    assert "| Looping | 0 | 0 |" in text


def test_a_failed_probe_of_open_prose_is_a_warning_too(tmp_path: Path) -> None:
    evidence = pruned() | {"probe": everything()["probe"]}
    evidence["loops"] |= {"loops": 0, "share": 0.0, "flagged": False}
    evidence["probe"]["probes"][0] |= {"name": "prose-loops", "verdict": "failed", "measured": "8 / 48 loop"}
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    assert "The open-prose probe failed: 8 / 48 loop." in text[: text.index("## At a glance")]


def test_a_prune_plan_that_cannot_be_read_is_still_a_pruned_checkpoint(tmp_path: Path) -> None:
    out = write_out(tmp_path / "out", {})
    (out / "halfbyte/prune-plan.json").write_text("{")
    text = write_card(out).read_text()
    assert "**The loop rate of this model was not measured.**" in text
    assert "(cannot read prune-plan.json)" in text


def test_reap_is_cited_where_it_pruned_only(card: str, tmp_path: Path) -> None:
    assert "lasby2025reap" not in card
    assert "lasby2025reap" in write_card(write_out(tmp_path / "pruned", pruned())).read_text()


def test_a_server_of_another_name_is_told(card: str, tmp_path: Path) -> None:
    said = "The evaluated server reported serving `Pico-NVFP4`; it is not recorded whether that is this checkpoint."
    assert said in card
    assert said not in write_card(write_out(tmp_path / "Pico-NVFP4", everything())).read_text()
    copied = everything()
    copied["eval"]["measured_folder"] = "Pico-NVFP4"  # the name that it had then
    assert said not in write_card(write_out(tmp_path / "copied", copied)).read_text()


@pytest.mark.parametrize("forced", [True, False])
def test_a_forced_release_says_so(tmp_path: Path, forced: bool) -> None:
    evidence = everything()
    evidence["release"] |= {"verdict": "ANOMALOUS", "forced": forced}
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    box = text[text.index("> [!CAUTION]") : text.index("| Gate |")]
    assert "**Verdict: ANOMALOUS. This release was not accepted.**" in box
    assert ("> It was published with `--force` despite this verdict." in box) == forced
    assert ("> `halfbyte publish` requires `--force` to upload a checkpoint with this verdict." in box) != forced


def test_an_unfinished_release_lists_each_gate_once_and_is_not_called_published(tmp_path: Path) -> None:
    judged = judge({"audit": "passed", "compare": {"max_kl": 0.1}, "bench": "passed"}, {})
    evidence = everything()
    evidence["release"] |= plain(judged) | {"forced": False}
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    box = text[text.index("> [!CAUTION]") : text.index("| Gate |")]
    assert "not accepted.** 0 of 3 gates passed; not run: audit, compare, bench.\n" in box
    assert "was published" not in box


def test_reasons_of_a_verdict_do_not_run_together(tmp_path: Path) -> None:
    evidence = everything()
    evidence["release"] |= {"verdict": "ANOMALOUS", "why": ["audit: 2 differ", "bench: 1 request failed."]}
    text = write_card(write_out(tmp_path / "out", evidence)).read_text()
    assert "not accepted.** audit: 2 differ; bench: 1 request failed.\n" in text


def test_a_pattern_with_a_bar_is_code_as_the_others(tmp_path: Path) -> None:
    out = write_out(tmp_path / "out", everything())
    path = out / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["ignore"] = ["lm_head", r"re:.*mlp\.(gate|up)_proj.*"]
    path.write_text(json.dumps(config))
    text = write_card(out).read_text()
    assert r"| Excluded from quantization | `lm_head`, `re:.*mlp\.(gate\|up)_proj.*` |" in text


def test_what_was_only_pruned_is_no_quantization(tmp_path: Path) -> None:
    evidence = pruned() | {"provenance": everything()["provenance"]}
    evidence["plan"]["recipe"]["quantize"] = None
    text = write_card(write_out(tmp_path / "out", evidence, kind="int4-k2.6")).read_text()
    assert "INT4 version of [`moonshotai/Kimi-Pico`]" in text
    assert "base_model_relation: finetune" in text
