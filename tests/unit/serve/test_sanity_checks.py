"""No launch script for a checkpoint that engines would load silently and answer with garbage."""

import json
import os
import subprocess

import pytest
from card_evidence import AUDIT
from ignore_list import with_ignore_list
from pico import write_pico
from safetensors.torch import load_file, save_file

from halfbyte.audit.run import audit, save
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import CheckFailedError
from halfbyte.evidence.measured_files import measured_in
from halfbyte.recipe.load import load_recipe
from halfbyte.serve.checkpoint_facts import audited
from halfbyte.ui.escape import pasted


@pytest.fixture
def pico(pico):
    return lambda kind: with_ignore_list(pico(kind))


def made(folder, findings, plan="one"):
    (folder / "halfbyte").mkdir(exist_ok=True)
    (folder / "halfbyte/plan.json").write_text(json.dumps({"fingerprint": "one"}))
    found = {**AUDIT, "plan": plan, "findings": findings, **measured_in(folder)}
    (folder / "halfbyte/audit.json").write_text(json.dumps(found))


def finding(check, level="bad"):
    return {"check": check, "level": level, "text": "2 modules have two scales"}


def shard_with(folder, suffix):
    return next(path for path in folder.glob("*.safetensors") if any(n.endswith(suffix) for n in load_file(path)))


def test_a_whole_checkpoint_gets_its_script_and_a_hint(halfbyte, pico):
    code, printed, said = halfbyte("serve", pico("nvfp4"), "--gpus", "1xB200")
    assert (code, printed[:3]) == (0, "#!/")
    assert "no audit result found" in said
    assert "halfbyte audit" in said
    assert "no audit result found" not in halfbyte("serve", pico("bf16"), "--gpus", "1xB200")[2]


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


def test_a_failed_audit_blocks_serving(halfbyte, pico):
    folder = pico("nvfp4")
    made(folder, [finding("index", "good"), finding("fused")])
    code, printed, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert (code, printed) == (1, "")
    assert "its last audit failed: fused: 2 modules have two scales" in said
    assert f"halfbyte audit {folder}" in said


def test_audits_that_do_not_block_serving(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    made(tmp_path, [finding("fused", "good")])
    assert audited(tmp_path) == []
    made(tmp_path, [finding("fused")], plan="two")
    assert "not audited" in audited(tmp_path)[0]
    made(tmp_path, [finding("loops")])
    assert audited(tmp_path)[0].startswith("! its last audit failed: loops")
    made(tmp_path, [finding("scales")])
    with pytest.raises(CheckFailedError, match="scales"):
        audited(tmp_path)


def test_audit_findings_count_only_for_the_audited_files(tmp_path):
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(b"weights")
    made(tmp_path, [finding("fused", "good")])
    assert audited(tmp_path) == []
    os.utime(shard, ns=(0, 0))  # a copy: the same bytes
    assert audited(tmp_path) == []
    shard.write_bytes(b"Weights")
    assert audited(tmp_path) == [f"not audited since model.safetensors changed: halfbyte audit {tmp_path}"]
    made(tmp_path, [finding("fused")])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckFailedError, match="fused"):  # until another audit passes
        audited(tmp_path)


def test_an_audit_records_the_files_it_checked(tmp_path):
    out = tmp_path / "out"
    quantize(write_pico(tmp_path / "source"), out, load_recipe("kimi-k2.6-nvfp4a16"))
    save(audit(out))
    assert audited(out) == []
    shard = out / "model-00002-of-000006.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "not audited since" in audited(out)[0]


def test_a_folder_without_a_plan_is_not_said_to_be_unaudited(tmp_path):
    (said,) = audited(tmp_path)
    assert "no audit result found" in said
    assert "stored only for checkpoints that halfbyte wrote" in said


def test_a_config_that_names_another_format(halfbyte, pico):
    folder = pico("nvfp4")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["quant_algo"] = "FP8"
    (folder / "config.json").write_text(json.dumps(config))
    code, printed, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert (code, printed) == (2, "")
    assert "'FP8'" in said


@pytest.mark.parametrize("gone", ["language_model.model.norm.weight", "mm_projector.proj.2.weight"])
def test_a_tensor_that_the_family_needs(halfbyte, pico, gone):
    folder = pico("nvfp4")
    shard = shard_with(folder, gone)
    save_file({name: tensor for name, tensor in load_file(shard).items() if name != gone}, shard)
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    del table["weight_map"][gone]
    del table["metadata"]
    index.write_text(json.dumps(table))
    code, printed, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert (code, printed) == (2, "")
    assert f"'{gone}' is missing" in said
    assert "structure" in audit(folder).failed


@pytest.mark.parametrize("name", ["a b", "it's", 'a"b', "$(touch no)", "`id`", "-dash", "new\nline", "é", "a\\b\x1b"])
def test_a_quoted_path_is_one_word_and_not_an_option(name):
    printed = subprocess.run(["bash", "-c", f"printf %s {pasted(name)}"], capture_output=True, text=True, check=True)
    assert printed.stdout.removeprefix("./") == name
    assert printed.stdout.startswith("./") == name.startswith("-")
    assert pasted(name).isprintable()


def test_hints_quote_the_folder(halfbyte, pico, tmp_path):
    folder = pico("nvfp4").rename(tmp_path / "we ird $(touch no)")
    _, _, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert f"halfbyte audit '{folder}'" in said
    assert f"next: halfbyte serve '{folder}'" in said
    _, _, said = halfbyte("serve", folder, "--gpus", "1xB200", "--write", tmp_path / "so me")
    assert f"next: bash '{tmp_path}/so me/" in said
    _, _, said = halfbyte("serve", folder, "--gpus", "1xB200", "--write", folder)
    assert f"--write '{folder}/scripts'" in said


def test_an_unfinished_output_is_refused(halfbyte, tmp_path):
    (tmp_path / "halfbyte").mkdir()
    (tmp_path / "model-00001-of-00002.safetensors.part").write_bytes(b"")
    code, printed, said = halfbyte("serve", tmp_path, "--gpus", "8xB200")
    assert (code, printed) == (2, "")
    assert "this output is incomplete" in said
    assert "again" in said
    assert "download" not in said


def test_no_tokenizer_is_a_warning(halfbyte, pico):
    folder = pico("nvfp4")
    for name in ("tokenizer.json", "tiktoken.model"):
        (folder / name).unlink(missing_ok=True)
    code, _, said = halfbyte("serve", folder, "--gpus", "1xB200")
    assert code == 0
    assert "! the folder has no tokenizer" in said
    (folder / "tiktoken.model").write_bytes(b"")
    assert "has no tokenizer" not in halfbyte("serve", folder, "--gpus", "1xB200")[2]


def test_a_hub_name_is_not_a_folder(halfbyte):
    code, printed, said = halfbyte("serve", "hf://org/name", "--gpus", "8xB200")
    assert (code, printed) == (2, "")
    assert "--hub org/name@COMMIT" in said
