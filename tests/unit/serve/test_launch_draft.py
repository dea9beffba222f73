"""Drafts: valid values of `--draft`, and their memory."""

import json
from pathlib import Path

import pytest
import torch
from kimi_served import kimi
from safetensors.torch import save_file

from halfbyte.errors import UsageError
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.launch import launch
from halfbyte.serve.launch_facts import LaunchOptions, draft_facts, draft_size
from halfbyte.serve.needs import Draft, eagle3_mla

MINI = Path(__file__).parents[3] / "models" / "kimi-mini"


def made(draft, machine="8xB200"):
    return launch(kimi(), parse_gpus(machine), LaunchOptions(draft=draft))


def draft_folder(folder, attention):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
    names = ("fc.weight", f"midlayer.self_attn.{attention}.weight", "embed_tokens.weight")
    save_file({name: torch.zeros(4, 8, dtype=torch.bfloat16) for name in names}, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize("asked", ["", "foo", "/nonexistent", "./x/y", "~/draft", "a/b/c", "a/b@main", "a b/c"])
def test_invalid_drafts_are_refused(asked):
    with pytest.raises(UsageError, match="neither a folder nor a Hub name") as caught:
        made(asked)
    assert "organization/name" in caught.value.fix


def test_a_model_folder_is_not_a_draft():
    with pytest.raises(UsageError, match="not an Eagle3 draft"):
        made(str(MINI))


@pytest.mark.parametrize(("attention", "mla"), [("kv_a_proj_with_mqa", True), ("k_proj", False)])
def test_a_folder_of_a_draft_is_counted_from_its_headers(tmp_path, attention, mla):
    folder = draft_folder(tmp_path / "draft", attention)
    assert draft_facts("kimi-k2.6", folder) == {"draft": folder, "draft_mla": mla}
    assert draft_size(folder) == Draft(128, 128 if mla else 64, 1)
    assert not any("size of" in note.text for note in made(folder).warnings)


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("auto", eagle3_mla(), ""),
        ("lightseekorg/kimi-k2.6-eagle3.1-mla", eagle3_mla(), ""),
        ("nvidia/Kimi-K2.6-Eagle3", Draft(5 * 10**9), "assumed to be 5 GB"),
        ("me/mine", Draft(5 * 10**9), "assumed to be 5 GB"),
        ("me/mine-mla", eagle3_mla(), "assumed to be that of published MLA drafts"),
    ],
)
def test_an_estimated_draft_size_is_reported_as_such(name, size, said):
    found = made(name)
    assert draft_size(found.draft) == size
    notes = [note.text for note in found.warnings if "size of" in note.text]
    assert bool(notes) == bool(said)
    assert all(said in note and name in note for note in notes)
