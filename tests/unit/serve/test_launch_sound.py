"""No script for a checkpoint that engines would load without a word and answer nonsense from."""

import json

import pytest
from ignore_list import with_ignore_list
from safetensors.torch import load_file, save_file

from halfbyte.errors import CheckFailedError
from halfbyte.serve.sound import audited


@pytest.fixture
def pico(pico):
    return lambda kind: with_ignore_list(pico(kind))


def made(folder, findings, plan="one"):
    (folder / "halfbyte").mkdir(exist_ok=True)
    (folder / "halfbyte/plan.json").write_text(json.dumps({"fingerprint": "one"}))
    (folder / "halfbyte/audit.json").write_text(json.dumps({"plan": plan, "findings": findings}))


def finding(check, level="bad"):
    return {"check": check, "level": level, "text": "2 modules have two scales"}


def shard_with(folder, suffix):
    return next(path for path in folder.glob("*.safetensors") if any(n.endswith(suffix) for n in load_file(path)))


def test_a_whole_checkpoint_gets_its_script_and_a_hint(halfbyte, pico):
    code, printed, said = halfbyte("serve", pico("nvfp4"), "--gpus", "1xB200")
    assert (code, printed[:3]) == (0, "#!/")
    assert "not audited" in said
    assert "halfbyte audit" in said
    assert "not audited" not in halfbyte("serve", pico("bf16"), "--gpus", "1xB200")[2]


def test_an_expert_without_its_input_scale(halfbyte, pico):
    folder, suffix = pico("nvfp4"), ".input_scale"
    shard = shard_with(folder, suffix)
    tensors = load_file(shard)
    gone = next(name for name in tensors if name.endswith(suffix))
    save_file({name: tensor for name, tensor in tensors.items() if name != gone}, shard)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        table = json.loads(index.read_text())
        del table["weight_map"][gone]
        index.write_text(json.dumps(table))
    code, printed, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert (code, printed) == (2, "")
    assert "without the input scale" in said
    assert gone.removesuffix(suffix) in said


def test_a_projector_that_the_ignore_list_forgets(halfbyte, pico):
    folder = pico("nvfp4")
    config = json.loads((folder / "config.json").read_text())
    block = config["quantization_config"]
    block["ignore"] = [name for name in block["ignore"] if "mm_projector" not in name]
    (folder / "config.json").write_text(json.dumps(config))
    code, printed, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert (code, printed) == (2, "")
    assert "mm_projector" in said
    assert "not quantized, and not ignored" in said


def test_a_failed_audit_is_believed(halfbyte, pico):
    folder = pico("nvfp4")
    made(folder, [finding("index", "good"), finding("fused")])
    code, printed, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert (code, printed) == (1, "")
    assert "its last audit failed: fused: 2 modules have two scales" in said
    assert f"halfbyte audit {folder}" in said


def test_a_passed_audit_one_of_another_run_and_one_that_garbles_nothing(tmp_path):
    made(tmp_path, [finding("fused", "good")])
    assert audited(tmp_path) == []
    made(tmp_path, [finding("fused")], plan="two")
    assert "not audited" in audited(tmp_path)[0]
    made(tmp_path, [finding("loops")])
    assert audited(tmp_path)[0].startswith("! its last audit failed: loops")
    made(tmp_path, [finding("scales")])
    with pytest.raises(CheckFailedError, match="scales"):
        audited(tmp_path)


def test_an_unfinished_output_says_so(halfbyte, tmp_path):
    (tmp_path / "halfbyte").mkdir()
    (tmp_path / "model-00001-of-00002.safetensors.part").write_bytes(b"")
    code, printed, said = halfbyte("serve", tmp_path, "--gpus", "8xB200")
    assert (code, printed) == (2, "")
    assert "this output is unfinished" in said
    assert "again" in said
    assert "download" not in said


def test_no_tokenizer_is_a_warning(halfbyte, pico):
    folder = pico("nvfp4")
    for name in ("tokenizer.json", "tiktoken.model"):
        (folder / name).unlink(missing_ok=True)
    code, _, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert code == 0
    assert "! there is no tokenizer" in said
    (folder / "tiktoken.model").write_bytes(b"")
    assert "no tokenizer in" not in halfbyte("serve", folder, "--gpus", "1xB200")[2]


def test_a_name_on_the_hub_is_no_folder(halfbyte):
    code, printed, said = halfbyte("serve", "hf://org/name", "--gpus", "8xB200")
    assert (code, printed) == (2, "")
    assert "--hub org/name@COMMIT" in said
