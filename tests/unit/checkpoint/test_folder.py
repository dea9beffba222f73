"""Checkpoint folders: consistent ones open, every inconsistency has its own error."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pico import KINDS

from halfbyte.checkpoint.folder import INDEX, open_checkpoint
from halfbyte.errors import CheckpointError

FIRST, SECOND = "model-00001-of-000006.safetensors", "model-00002-of-000006.safetensors"


@pytest.fixture
def k26(pico) -> Path:
    return pico("int4-k2.6")


def refused(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert caught.value.where
    assert caught.value.fix
    return caught.value


def edit_index(folder: Path, **changes: object) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"].update(changes)
    (folder / INDEX).write_text(json.dumps(index))


def names_in(folder: Path, shard: str) -> list[str]:
    return sorted(n for n, s in json.loads((folder / INDEX).read_text())["weight_map"].items() if s == shard)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_checkpoint_opens_as_safetensors_sees_it(pico, kind):
    from safetensors import safe_open

    folder = pico(kind)
    checkpoint = open_checkpoint(folder)
    theirs = {}
    for shard in folder.glob("*.safetensors"):
        with safe_open(shard, "pt") as file:
            slices = {name: file.get_slice(name) for name in list(file.keys())}
        theirs |= {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    assert {name: (t.dtype, list(t.shape)) for name, t in checkpoint.tensors.items()} == theirs
    assert checkpoint.shards == {path.name: path.stat().st_size for path in sorted(folder.glob("*.safetensors"))}
    assert checkpoint.index_nbytes in (checkpoint.nbytes, None)
    assert checkpoint.stray_shards() == []


def test_a_byte_range_holds_the_tensor(k26):
    import torch
    from safetensors import safe_open

    for name, tensor in open_checkpoint(k26).tensors.items():
        with safe_open(k26 / tensor.shard, "pt") as file:
            theirs = file.get_tensor(name).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        assert (k26 / tensor.shard).read_bytes()[tensor.begin : tensor.end] == theirs


def test_other_files_are_all_but_weights(k26):
    (k26 / "pytorch_model.bin").write_bytes(b"pickle")
    (k26 / "pytorch_model.bin.index.json").write_text("{}")
    (k26 / ".gitattributes").write_text("")
    found = {path.as_posix() for path in open_checkpoint(k26).other_files()}
    assert found == {
        "LICENSE", "chat_template.jinja", "config.json", "figures/score.svg", "generation_config.json",
        "modeling_deepseek.py", "tiktoken.model", "tokenizer_config.json",
    }  # fmt: skip


def test_no_code_of_a_checkpoint_runs(k26):
    code = (
        "import sys; from pathlib import Path; from halfbyte.checkpoint.folder import open_checkpoint;"
        "from halfbyte.families.model import describe; c = open_checkpoint(Path(sys.argv[1]));"
        "describe(c); c.other_files()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(k26)], capture_output=True, text=True, check=False, cwd=k26)
    assert done.returncode == 0, done.stderr
    with pytest.raises(RuntimeError, match="code from a checkpoint was run"):  # the planted code, if it were run
        exec((k26 / "modeling_deepseek.py").read_text())


def test_a_missing_shard(k26):
    (k26 / SECOND).unlink()
    assert refused(k26).what == f"shard '{SECOND}' is missing"


def test_a_truncated_shard(k26):
    path = k26 / SECOND
    path.write_bytes(path.read_bytes()[:-10])
    error = refused(k26)
    assert error.what.startswith("the tensors end at byte")
    assert error.where == SECOND
    path.write_bytes(path.read_bytes()[:100])
    assert refused(k26).what.startswith("the header should have")


def test_a_tensor_in_two_shards(k26):
    shutil.copy(k26 / FIRST, k26 / "model-copy.safetensors")
    edit_index(k26, another="model-copy.safetensors")
    error = refused(k26)
    assert error.what.endswith("is in two shards")
    assert error.where == f"{FIRST} and model-copy.safetensors"


def test_an_index_with_a_tensor_that_no_shard_has(k26):
    edit_index(k26, nobody=SECOND)
    error = refused(k26)
    assert (error.what, error.where) == ("'nobody' is not in the shard", SECOND)


def test_a_shard_with_a_tensor_that_the_index_lacks(k26):
    index = json.loads((k26 / INDEX).read_text())
    gone = names_in(k26, SECOND)[:2]
    index["weight_map"] = {name: shard for name, shard in index["weight_map"].items() if name not in gone}
    (k26 / INDEX).write_text(json.dumps(index))
    error = refused(k26)
    assert (error.what, error.where) == (f"'{gone[0]}' is in the shard, but not in the index (and 1 more)", SECOND)


@pytest.mark.parametrize(
    "shard",
    ["../outside.safetensors", "sub/../../outside.safetensors", "/etc/outside.safetensors", "a\\b.safetensors",
     "weights.bin", "", ".."],
)  # fmt: skip
def test_an_index_that_leads_out_of_the_folder(k26, shard):
    shutil.copy(k26 / FIRST, k26.parent / "outside.safetensors")
    edit_index(k26, another=shard)
    error = refused(k26)
    assert error.what == f"invalid shard name '{shard}'"
    assert "inside the checkpoint's own folder" in error.fix


def test_a_link_that_leaves_the_folder(k26):
    shutil.move(k26 / FIRST, k26.parent / "outside.safetensors")
    (k26 / FIRST).symlink_to(k26.parent / "outside.safetensors")
    assert refused(k26).what == f"'{FIRST}' is a link to a path outside the folder"


def test_a_linked_folder_that_leaves_the_folder(k26):
    shutil.copytree(k26, k26.parent / "outside")
    (k26 / "sub").symlink_to(k26.parent / "outside")
    edit_index(k26, another=f"sub/{FIRST}")
    assert refused(k26).what == f"'sub/{FIRST}' is a link to a path outside the folder"


def test_a_link_inside_the_folder_is_fine(k26):
    (k26 / "real").mkdir()
    shutil.move(k26 / FIRST, k26 / "real" / "one.safetensors")
    (k26 / FIRST).symlink_to(Path("real") / "one.safetensors")
    assert len(open_checkpoint(k26).tensors) == 138


def test_other_files_must_not_link_outside_the_folder(k26):
    (k26.parent / "secret").write_text("a private key")
    (k26 / "tokenizer.json").symlink_to(k26.parent / "secret")
    with pytest.raises(CheckpointError, match=r"'tokenizer\.json' is a link to a path outside the folder"):
        open_checkpoint(k26).other_files()


def test_pickled_weights_only(k26):
    for path in k26.glob("*.safetensors*"):
        path.unlink()
    (k26 / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert refused(k26).what == "only pickled weights (pytorch_model.bin), which can run code when loaded"
    (k26 / "pytorch_model.bin").unlink()
    assert refused(k26).what == "no weights in this folder"


def test_shards_without_an_index(k26):
    (k26 / INDEX).unlink()
    assert refused(k26).what == f"the folder has '{FIRST}', but no index"


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "config.json is not JSON"),
        ("config.json", "[]", "config.json is not a JSON object"),
        ("config.json", "[" * 100_000, "config.json is not JSON"),
        (INDEX, "{", f"{INDEX} is not JSON"),
        (INDEX, "{}", "the index has no weight_map"),
        (INDEX, '{"weight_map": {}}', "the index has no weight_map"),
        (INDEX, '{"weight_map": {"a": 7}}', "the index has no file name for 'a'"),
    ],
)
def test_invalid_config_and_index_files(k26, file, text, sentence):
    (k26 / file).unlink()
    if text is not None:
        (k26 / file).write_text(text)
    assert refused(k26).what == sentence


def test_a_missing_folder_is_refused(tmp_path):
    assert refused(tmp_path / "nowhere").what == "the folder does not exist"
    (tmp_path / "file").write_text("")
    assert refused(tmp_path / "file").what == "not a folder"


def test_a_shard_that_no_index_names_is_a_stray(k26):
    shutil.copy(k26 / FIRST, k26 / "consolidated.safetensors")
    assert open_checkpoint(k26).stray_shards() == ["consolidated.safetensors"]


@pytest.mark.parametrize(("shard", "shown"), [("a\0b.safetensors", r"a\0b"), ("a\ud800.safetensors", r"a\ud800")])
def test_a_shard_name_that_no_file_can_have(k26, shard, shown):
    edit_index(k26, another=shard)
    assert refused(k26).what == f"invalid shard name '{shown}.safetensors'"
