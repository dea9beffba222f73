"""Complete cards, word for word, and which README files they may replace.

After an intended change: HALFBYTE_WRITE_CARDS=1 python -m pytest tests/unit/publish/test_card_golden.py, and review the
difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from card_evidence import SOURCE_README, everything, pruned, put, regression, write_out
from huggingface_hub import ModelCard, ModelCardData

from halfbyte.errors import UsageError
from halfbyte.evidence.audit import Audit
from halfbyte.evidence.folder import read_evidence
from halfbyte.evidence.measured_files import MEASURED
from halfbyte.publish.card.facts import CardOverrides
from halfbyte.publish.card.write import write_card

CARDS = Path(__file__).parent / "cards"
CASES = {"everything": everything, "nothing": dict, "pruned": pruned, "regression": regression}


@pytest.mark.parametrize("case", CASES)
def test_the_card_is_word_for_word_what_it_was(tmp_path: Path, case: str) -> None:
    out = write_out(tmp_path / "Pico-NVFP4", CASES[case]())
    text = write_card(out).read_text()
    golden = CARDS / f"{case}.md"
    if os.environ.get("HALFBYTE_WRITE_CARDS"):
        golden.write_text(text)
    assert text == golden.read_text()
    assert str(tmp_path) not in text
    assert "/srv/" not in text
    assert "/home/" not in text


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_out(tmp_path / "Pico-NVFP4", everything())


def test_running_again_gives_the_same_bytes_and_remembers_what_was_said(out: Path) -> None:
    said = CardOverrides(name="acme/Pico-NVFP4", base_model="moonshotai/Other", license="mit", quantized_by="Acme")
    first = write_card(out, said).read_bytes()
    assert write_card(out).read_bytes() == first
    assert write_card(out, CardOverrides(quantized_by="Somebody else")).read_bytes() != first
    assert not list(out.rglob("*.part"))


def test_the_front_matter_is_what_the_hub_reads(out: Path) -> None:
    path = write_card(out, CardOverrides(name="acme/Pico-NVFP4"))
    card = ModelCard.load(path)
    assert isinstance(card.data, ModelCardData)
    assert card.data.to_dict() | {"tags": None, "model-index": None} == {
        "base_model": "moonshotai/Kimi-Pico", "base_model_relation": "quantized", "license": "other",
        "license_name": "modified-mit", "license_link": "LICENSE", "language": ["en", "zh"], "tags": None,
        "library_name": "vllm", "pipeline_tag": "image-text-to-text", "quantized_by": "acme",
        "model-index": None,
    }  # fmt: skip
    assert card.data.tags == ["halfbyte", "nvfp4", "4-bit", "modelopt", "kimi_k25", "mixture-of-experts"]
    assert [(one.dataset_name, one.metric_type, one.metric_value) for one in card.data.eval_results or []] == [
        ("gsm8k_cot", "exact_match", 0.9136), ("gsm8k", "exact_match", 0.9355), ("mmlu", "acc", 0.25)]  # fmt: skip
    assert str(card) == path.read_text()


def test_an_anomalous_task_is_no_result(tmp_path: Path) -> None:
    card = ModelCard.load(write_card(write_out(tmp_path / "out", regression())))
    assert [one.dataset_name for one in card.data.eval_results] == ["gsm8k_cot", "gsm8k"]


def test_nothing_is_invented_where_nothing_is_stated(tmp_path: Path) -> None:
    path = write_card(write_out(tmp_path / "out", {}, readme="no front matter, no heading\n"))
    stated = ModelCard.load(path).data.to_dict()
    assert set(stated) == {"tags", "library_name"}
    text = path.read_text()
    assert "quantization of not stated" in text
    assert "| License | not stated |" in text
    assert "none: not calibrated" not in text
    for name in ("moonshot", "wafer", "nvidia/", "lossless"):
        assert name not in text.lower()


def test_the_sources_readme_is_kept(out: Path) -> None:
    write_card(out)
    assert (out / "halfbyte/source-README.md").read_text() == SOURCE_README
    write_card(out)
    assert (out / "halfbyte/source-README.md").read_text() == SOURCE_README
    assert "modified-mit" in (out / "README.md").read_text()  # which is still known


def test_a_readme_that_somebody_wrote_is_not_replaced_without_force(out: Path) -> None:
    readme = out / "README.md"
    readme.write_text("my own words\n")
    with pytest.raises(UsageError, match="neither copied from the source nor written by halfbyte"):
        write_card(out)
    assert readme.read_text() == "my own words\n"
    assert not (out / "halfbyte/card.json").exists()
    (out / "halfbyte/source-README.md").unlink()
    write_card(out, force=True)
    assert (out / "halfbyte/source-README.md").read_text() == "my own words\n"  # nothing is lost


def test_a_card_of_ours_that_was_edited_is_not_replaced_without_force(out: Path) -> None:
    write_card(out)
    with (out / "README.md").open("a") as file:
        file.write("\nAnd a remark.\n")
    with pytest.raises(UsageError, match="neither copied from the source nor written by halfbyte"):
        write_card(out)
    write_card(out, force=True)
    assert (out / "halfbyte/source-README.md").read_text() == SOURCE_README


def test_the_sources_readme_that_came_back_is_replaced(out: Path) -> None:
    write_card(out)
    (out / "README.md").write_text(SOURCE_README)
    assert write_card(out).read_text() != SOURCE_README


def test_a_link_is_not_followed(out: Path, tmp_path: Path) -> None:
    (out / "README.md").unlink()
    (tmp_path / "elsewhere").write_text("theirs")
    (out / "README.md").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a symlink"):
        write_card(out, force=True)
    assert (tmp_path / "elsewhere").read_text() == "theirs"


def test_the_audit_is_as_fresh_after_the_card_as_before(out: Path) -> None:
    write_card(out)
    assert read_evidence(out).get(Audit) is not None


def test_old_evidence_is_not_printed_and_it_is_said_why(out: Path) -> None:
    put(out, {"eval": everything()["eval"] | {MEASURED: {"config.json": "0" * 64}}})
    text = write_card(out).read_text()
    assert "**Not measured** (measured on other files: config.json has changed since)" in text
    assert "91.36" not in text


def test_serving_commands_for_gpus_that_are_said(tmp_path: Path) -> None:
    evidence = everything()
    del evidence["serve"]
    out = write_out(tmp_path / "out", evidence)
    text = write_card(out, CardOverrides(gpus="8xB200")).read_text()
    assert "Computed from the safetensors headers for 8xB200; these commands have not been run." in text
    assert "vllm serve ./Kimi-Pico-NVFP4" in text
    assert "--served-model-name Kimi-Pico-NVFP4" in text
    assert "sglang serve" in text
    with pytest.raises(UsageError, match="unknown GPU 'b2000'"):
        write_card(out, CardOverrides(gpus="8xB2000"))


def test_the_command_names_what_is_missing(tmp_path: Path, halfbyte) -> None:
    out = write_out(tmp_path / "out", {"plan": everything()["plan"]})
    code, printed, _ = halfbyte("card", out, "--quantized-by", "Acme")
    assert code == 0
    assert f"{out}/README.md" in printed
    assert "not measured: eval" in printed
    assert f"halfbyte probe URL -o {out}/halfbyte/probe" in printed
    assert "not measured: prune" not in printed  # the recipe does not prune
    _, printed, _ = halfbyte("card", out, "--json")
    assert "prune" not in json.loads(printed)["missing"]
    assert json.loads(printed)["present"] == ["plan"]
    assert halfbyte("card", tmp_path / "nothing")[0] == 2


def test_the_command_notes_a_card_without_base_model_or_maker(tmp_path: Path, halfbyte) -> None:
    out = write_out(tmp_path / "out", {"plan": everything()["plan"]})
    _, _, error = halfbyte("card", out)
    assert f"the card does not state the base model: halfbyte card {out} --base-model ORG/NAME" in error
    assert f"the card does not state the maker: halfbyte card {out} --quantized-by NAME" in error
    assert (
        "does not state"
        not in halfbyte("card", out, "--base-model", "moonshotai/Kimi-Pico", "--quantized-by", "Acme")[2]
    )
