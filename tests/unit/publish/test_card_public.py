"""A card for readers of the Hub: a model name, commands that work after a download, no placeholders."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from card_evidence import SOURCE_README, everything, pruned, write_out
from huggingface_hub import ModelCard
from pico import write_pico

from halfbyte.errors import UsageError
from halfbyte.evidence.folder import read_evidence
from halfbyte.publish.card.facts import CardOverrides
from halfbyte.publish.card.write import write_card
from halfbyte.publish.hub.checks import Check, before_hashing
from halfbyte.publish.report.page import write_report

REPO = "acme/Kimi-Pico-NVFP4"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_out(tmp_path / "OUT3", everything())


def bad(out: Path, repo: str) -> list[Check]:
    found = before_hashing(out, repo, read_evidence(out), force=False)
    return [check for check in found if check.level == "bad" and "card" in check.text]


def test_the_title_is_a_models_name_and_never_the_folders(out: Path) -> None:
    text = write_card(out).read_text()
    assert "\n# Kimi-Pico-NVFP4\n" in text
    assert "OUT3" not in text
    for words in ("is not stated.", "What to do next", "halfbyte publish", "vllm serve OUT", "To measure it"):
        assert words not in text


@pytest.mark.parametrize(
    ("said", "title"),
    [
        (CardOverrides(repo="acme/My-Kimi"), "My-Kimi"),
        (CardOverrides(name="A Kimi", repo="acme/My-Kimi"), "A Kimi"),
        (CardOverrides(base_model="acme/Kimi-K2.6-BF16"), "Kimi-K2.6-NVFP4"),  # whose format is not this one's
        (CardOverrides(base_model="../../K<2>"), "K-2-NVFP4"),
    ],
)
def test_what_names_a_checkpoint(out: Path, said: CardOverrides, title: str) -> None:
    assert f"\n# {title}\n" in write_card(out, said).read_text()


def test_commands_name_the_repository_and_the_folder_of_a_download(out: Path) -> None:
    text = write_card(out, CardOverrides(repo=REPO)).read_text()
    assert f"vllm serve {REPO} " in text
    assert f"hf download {REPO} --local-dir Kimi-Pico-NVFP4" in text
    assert "-v ./Kimi-Pico-NVFP4:/model:ro" in text
    assert "This checkpoint was created by acme." in text


def test_a_command_for_amd_names_the_devices(out: Path) -> None:
    path = out / "halfbyte/serve/serve.json"
    record = json.loads(path.read_text())
    record["launches"][0]["docker"][2:2] = ["--device=/dev/kfd", "--device=/dev/dri", "-v", "/dev/shm/jane/x:/y"]
    path.write_text(json.dumps(record))
    text = write_card(out).read_text()
    assert "--device=/dev/kfd" in text
    assert "--device=/dev/dri" in text
    assert "jane" not in text


def test_the_sources_own_card_names_it_rather_than_its_folder(out: Path) -> None:
    path = out / "halfbyte/provenance.json"
    record = json.loads(path.read_text())
    record["source"]["name"] = "SRC"
    path.write_text(json.dumps(record))
    source = out / "halfbyte/source-README.md"
    source.write_text("---\nlicense: mit\nmodel-index:\n- name: Kimi-Own\n  results: []\n---\n# Introduction\n")
    text = write_card(out, force=True).read_text()
    assert "\n# Kimi-Own-NVFP4\n" in text
    assert "quantization of SRC" not in text


def test_the_command_for_a_wrong_title_mends_it_even_after_another_name(out: Path) -> None:
    write_card(out, CardOverrides(repo=REPO, name="X"))
    (check,) = bad(out, REPO)
    assert check.fix == f"run halfbyte card {out} --repo {REPO} --name Kimi-Pico-NVFP4"
    write_card(out, CardOverrides(repo=REPO, name="Kimi-Pico-NVFP4"))
    assert bad(out, REPO) == []


def test_a_report_of_another_title_than_the_cards_is_refused(out: Path) -> None:
    write_card(out)
    write_report(out)
    assert bad(out, REPO) == []
    write_card(out, CardOverrides(repo="acme/Other_Name"))
    assert [(check.text, check.fix) for check in bad(out, "acme/Other_Name")] == [
        ("the report's title is 'Kimi-Pico-NVFP4', but the card's is 'Other_Name'", f"run halfbyte report {out}")
    ]
    write_report(out)
    assert bad(out, "acme/Other_Name") == []


def test_a_card_without_a_repository_can_go_to_any_organization(out: Path) -> None:
    write_card(out)
    assert bad(out, REPO) == []
    assert bad(out, "other/Kimi-Pico-NVFP4") == []


def test_a_card_of_another_repository_is_refused_with_the_command_that_mends_it(out: Path) -> None:
    write_card(out, CardOverrides(repo=REPO))
    assert bad(out, REPO) == []
    found = bad(out, "acme/Other")
    assert [check.text for check in found] == [
        "the card's title is 'Kimi-Pico-NVFP4', but the repository's name is 'Other'",
        f"the card was written for {REPO}, not for acme/Other",
        f"a command in the card serves '{REPO}' instead of acme/Other",
        "a command in the card serves './Kimi-Pico-NVFP4' instead of acme/Other",
    ]
    assert {check.fix for check in found} == {f"run halfbyte card {out} --repo acme/Other"}
    write_card(out, CardOverrides(repo="acme/Other"))
    assert bad(out, "acme/Other") == []


@pytest.mark.parametrize(
    "words", ["Who made this checkpoint is not stated.", "halfbyte publish OUT REPO", "<your-repo>", "YOUR_ORG"]
)
def test_a_placeholder_is_refused(out: Path, words: str) -> None:
    path = write_card(out, CardOverrides(repo=REPO))
    path.write_text(path.read_text() + f"\n{words}\n")
    assert any("has a placeholder" in check.text for check in bad(out, REPO))


def test_a_card_is_refused_after_its_evidence_changed_and_not_after_a_copy(out: Path, tmp_path: Path) -> None:
    write_card(out)
    subprocess.run(["cp", "-r", str(out), str(tmp_path / "copy")], check=True)
    assert bad(tmp_path / "copy", REPO) == []
    path = tmp_path / "copy/halfbyte/eval/eval.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 1.0}))
    assert [check.text for check in bad(tmp_path / "copy", REPO)] == [
        "halfbyte/eval/eval.json changed after the card was written"
    ]


def test_the_readme_of_a_source_stays(tmp_path: Path, halfbyte) -> None:
    source = write_pico(tmp_path / "source", "int4-k2.6")
    (source / "README.md").write_text(SOURCE_README)
    code, _, error = halfbyte("card", source)
    assert code == 2
    assert "the checkpoint was not created by halfbyte and has a README.md" in error
    assert (source / "README.md").read_text() == SOURCE_README
    assert not (source / "halfbyte").exists()
    with pytest.raises(UsageError):
        write_card(source)
    write_card(source, force=True)
    assert (source / "halfbyte/source-README.md").read_text() == SOURCE_README


def test_a_pruned_card_shows_the_command_that_was_typed(tmp_path: Path) -> None:
    evidence = pruned()
    evidence["plan"]["recipe"] |= {"name": "prune", "quantize": None, "prune": {"keep": 4}}
    out = write_out(tmp_path / "out", evidence)
    text = write_card(out).read_text()
    assert "halfbyte prune SRC OUT --plan halfbyte/prune-plan.json" in text
    assert "-r prune" not in text
    evidence["plan"]["command"] = ["halfbyte", "prune", "SRC", "OUT", "--keep", "4", "--data", "news=/srv/x/news.jsonl"]
    text = write_card(write_out(tmp_path / "typed", evidence)).read_text()
    assert "halfbyte prune SRC OUT --keep 4 --data news=news.jsonl" in text


def test_the_hub_files_what_was_only_pruned_as_no_quantization(tmp_path: Path) -> None:
    evidence = pruned()
    evidence["plan"]["recipe"] |= {"quantize": None, "prune": {"keep": 4}}
    said = CardOverrides(base_model="moonshotai/Kimi-Pico")
    card = ModelCard.load(write_card(write_out(tmp_path / "out", evidence), said))
    assert card.data.to_dict()["base_model_relation"] == "finetune"
    whole = ModelCard.load(write_card(write_out(tmp_path / "both", pruned()), said))
    assert whole.data.to_dict()["base_model_relation"] == "quantized"


def test_the_library_is_one_that_loads_the_format(tmp_path: Path) -> None:
    evidence = everything()
    assert ModelCard.load(write_card(write_out(tmp_path / "a", evidence))).data.library_name == "vllm"  # ModelOpt's
    kept = ModelCard.load(write_card(write_out(tmp_path / "b", evidence, kind="int4-k2.6")))
    assert kept.data.library_name == "transformers"  # as the source's card says: compressed-tensors
