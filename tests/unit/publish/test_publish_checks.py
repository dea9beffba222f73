"""Checks that block publishing: each is found and reported, and nothing is sent."""

import json
import os
import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest
from release_folder import finish

from halfbyte.audit.inputs import gather
from halfbyte.audit.run import audit
from halfbyte.errors import CheckpointError
from halfbyte.publish import contents
from halfbyte.publish.hub import checks, secrets
from halfbyte.publish.hub.checks import of_staged
from halfbyte.publish.hub.staging import Sent, Staged, metadata_text, redactor
from halfbyte.publish.provenance import write_provenance
from halfbyte.publish.verify import verify
from halfbyte.recipe.decisions import Recipe
from halfbyte.recipe.load import load_recipe

REPO = "someone/kimi-4bit"
TOKEN_LIKE = "hf_" + "abcdefghij" * 4


@pytest.fixture
def refused(halfbyte, hub):
    """Publish a folder that must be rejected; return the output. No request may be made."""

    def publish(out, *options):
        code, said, error = halfbyte("publish", out, REPO, *options)
        assert code == 1, said + error
        assert hub.requests == []
        assert "nothing was uploaded" in error
        return said

    return publish


def recorded(out, source):
    """Rewrite provenance and card after an intended change."""
    write_provenance(out, source)
    finish(out)
    write_provenance(out, source)


def test_nothing_stands_against_a_folder_that_is_ready(halfbyte, hub, ready):
    code, said, error = halfbyte("publish", ready, REPO, "--dry-run")
    assert code == 0, error
    assert "✗" not in said
    for sentence in ("6 shards and", "the audit passed", "the verdict is ACCEPT", "the card matches this plan",
                     "LICENSE", "no secrets", "no local paths"):  # fmt: skip
        assert sentence in said


def test_a_half_written_file(refused, ready):
    (ready / "model-00001-of-000006.safetensors.part").write_bytes(b"half")
    assert "is incomplete: this checkpoint is not finished" in refused(ready)


def test_a_missing_shard(refused, ready):
    (ready / "model-00003-of-000006.safetensors").unlink()
    assert "the checkpoint is incomplete" in refused(ready)


def test_a_stray_shard(refused, ready):
    shutil.copy(ready / "model-00003-of-000006.safetensors", ready / "model-00007-of-000006.safetensors")
    assert "model-00007-of-000006.safetensors is not part of this checkpoint" in refused(ready)


def test_no_audit(refused, ready):
    (ready / "halfbyte/audit.json").unlink()
    assert "no valid audit of these weights" in refused(ready)


@pytest.mark.parametrize(
    ("key", "value", "said"), [("passed", False, "the audit failed"), ("plan", "0", "another plan")]
)
def test_an_audit_that_does_not_count(refused, ready, key, value, said):
    path = ready / "halfbyte/audit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert said in refused(ready)


def test_an_audit_of_files_that_changed(refused, ready):
    shard = ready / "model-00003-of-000006.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert f"measured on other files: {shard.name} has changed since" in refused(ready)


def test_another_verdict_needs_force_and_a_card_that_says_so(halfbyte, hub, ready, source, refused):
    finish(ready, "REGRESSION")
    write_provenance(ready, source)
    assert "the verdict is REGRESSION: only ACCEPT is published" in refused(ready)
    card = (ready / "README.md").read_text()
    (ready / "README.md").write_text(card.replace("REGRESSION", "fine"))
    assert "but the card does not state it" in refused(ready, "--force")
    (ready / "README.md").write_text(card)
    code, said, error = halfbyte("publish", ready, REPO, "--force")
    assert code == 0, error
    assert "! the verdict is REGRESSION, and the card states it; published because of --force" in said


def test_a_forced_dry_run_suggests_a_command_that_works(halfbyte, hub, ready, source):
    finish(ready, "REGRESSION")
    write_provenance(ready, source)
    options = [
        "--force",
        "--private",
        "--gated",
        "auto",
        "--traces",
        "someone/traces",
        "--revision",
        "v2",
        "-m",
        "it's",
    ]
    code, _, error = halfbyte("publish", ready, REPO, "--dry-run", *options)
    assert code == 0, error
    (suggested,) = re.findall(r"next: halfbyte (.*)", error)
    assert shlex.split(suggested) == [
        "publish", str(ready), REPO, "--force", "--private", "--gated", "auto", "--traces", "someone/traces",
        "--revision", "v2", "--message", "it's",
    ]  # fmt: skip
    assert halfbyte(*shlex.split(suggested), "--dry-run")[0] == 0


def test_a_plain_dry_run_suggests_no_options(halfbyte, ready):
    assert f"next: halfbyte publish {ready} {REPO}\n" in halfbyte("publish", ready, REPO, "--dry-run")[2]


def test_no_verdict(halfbyte, ready, source, refused):
    (ready / "halfbyte/release.json").unlink()
    write_provenance(ready, source)
    assert "there is no verdict" in refused(ready)
    assert "but the card does not state it" in refused(ready, "--force")
    card = ready / "README.md"
    card.write_text(card.read_text().replace("ACCEPT", "not judged."))
    assert halfbyte("publish", ready, REPO, "--force")[0] == 0


def test_the_card(refused, ready, source):
    card = ready / "README.md"
    text = card.read_text()
    card.unlink()
    assert "the card (README.md) is missing" in refused(ready)
    card.write_text("# the source's card\n")
    assert "the card is for another checkpoint" in refused(ready)
    card.write_text(text.replace("license: other\n", ""))
    assert "front matter has no license" in refused(ready)
    card.write_text(text.replace("ACCEPT", "good"))
    assert "does not state the verdict ACCEPT" in refused(ready)
    card.write_text(text)
    (ready / "halfbyte/card.json").write_text(json.dumps({"evidence_sha256": {"audit": "0" * 64}}))
    assert "halfbyte/audit.json changed after the card was written" in refused(ready)


def test_a_card_without_base_model_or_maker_gets_a_note(halfbyte, ready, source):
    card = ready / "README.md"
    text = card.read_text()
    card.write_text(text.replace("base_model: moonshotai/Kimi-K2.6\n", ""))
    code, said, error = halfbyte("publish", ready, REPO, "--dry-run")
    assert code == 0, error
    assert f"! the card names no base model\n  run halfbyte card {ready} --base-model ORG/NAME" in said
    assert f"! the card names no maker\n  run halfbyte card {ready} --quantized-by NAME" in said
    card.write_text(text.replace("license: other\n", "license: other\nquantized_by: someone\n"))
    assert "the card names no" not in halfbyte("publish", ready, REPO, "--dry-run")[1]


def test_a_comment_in_the_front_matter_is_not_the_title(halfbyte, ready):
    card = ready / "README.md"
    card.write_text(card.read_text().replace("license: other\n", "# a comment\nlicense: other\n"))
    code, said, error = halfbyte("publish", ready, REPO, "--dry-run")
    assert code == 0, said + error


def test_a_checkpoint_that_halfbyte_did_not_make(halfbyte, source, hub):
    code, said, error = halfbyte("publish", source, REPO, "--dry-run")
    assert (code, said.count("✗"), hub.requests) == (1, 1, [])
    assert "✗ the checkpoint was not created by halfbyte: halfbyte/plan.json is missing" in said
    assert "halfbyte quantize" in said and "halfbyte card" not in said
    assert "1 check blocks publishing" in error


def test_a_damaged_plan(refused, ready):
    (ready / "halfbyte/plan.json").write_text("{")
    said = refused(ready)
    assert "✗ the plan of this checkpoint is unusable: cannot read plan.json" in said
    assert "the plan None" not in said


def test_blocking_checks_are_counted(halfbyte, ready):
    (ready / "LICENSE").unlink()
    (ready / "README.md").unlink()
    assert "2 checks block publishing" in halfbyte("publish", ready, REPO, "--dry-run")[2]


def test_no_license(refused, ready, source):
    (ready / "LICENSE").unlink()
    recorded(ready, source)
    assert "there is no license file" in refused(ready)


def test_a_file_that_nobody_recorded(refused, ready):
    (ready / "notes.txt").write_text("mine")
    assert "notes.txt is not in the record" in refused(ready)


def test_a_changed_tokenizer(refused, ready):
    (ready / "tokenizer_config.json").write_text('{"a": 1}')
    said = refused(ready)
    assert "there is no verdict (measured on other files: tokenizer_config.json has changed since)" in said


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_the_audit_names_a_tokenizer_or_template_that_changed_since(halfbyte, ready, source, name):
    unchanged = "the audit passed, and no files have changed since"
    assert f"✓ {unchanged}" in halfbyte("publish", ready, REPO, "--dry-run")[1]
    (ready / name).write_text("{}")
    recorded(ready, source)
    code, said, error = halfbyte("publish", ready, REPO, "--dry-run")
    assert code == 0, error
    assert unchanged not in said
    assert "✓ the audit passed, and no weights, index or config have changed since" in said
    assert f"! {name} has changed since the audit, which covers only weights and formats" in said


def test_links_that_lead_out(refused, ready, source, tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private/passwords.txt").write_text("x")
    (ready / "extra.txt").symlink_to(tmp_path / "private/passwords.txt")
    assert "extra.txt is a symlink to a target outside the folder" in refused(ready)
    (ready / "extra.txt").unlink()
    (ready / "folder").symlink_to(tmp_path / "private")
    assert "folder is a symlink to a target outside the folder" in refused(ready)


SECRETS = {
    "a Hugging Face token": TOKEN_LIKE,
    "an OpenAI or Anthropic key": "sk-proj-" + "a1B2" * 8,
    "an AWS access key": "AKIA" + "ABCDEFGH12345678",
    "an AWS secret key": "aws_secret_access_key = " + "a" * 40,
    "a Google key": "AIza" + "b" * 35,
    "a GitHub token": "ghp_" + "c" * 36,
    "a Slack token": "xoxb-" + "1234567890",
    "a Weights & Biases key": "WANDB_API_KEY=" + "d" * 40,
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "an Authorization header": "Authorization: Bearer abcdefgh.12345",
    "a password in an address": "https://me:hunter22@example.org/x",
}


def test_every_kind_of_secret_has_a_test():
    assert SECRETS.keys() == secrets.SECRETS.keys()


@pytest.mark.parametrize("kind", SECRETS)
def test_each_secret_is_found_at_its_line_and_not_repeated(kind):
    text = f"one\ntwo {SECRETS[kind]} end\n"
    found = list(secrets.secrets("a.json", text, {}))
    assert [(leak.line, leak.what) for leak in found] == [(2, kind)]
    assert SECRETS[kind] not in str(found)


@pytest.mark.parametrize(
    "harmless",
    ["hf_quant_config.json", "sk-learn", "task-specific-and-long-name-indeed", "Authorization: see below",
     "https://huggingface.co/a/b", "tokens_sha256: " + "a" * 64, "AKIA", "the authorization bearer is you"],
)  # fmt: skip
def test_what_is_no_secret_is_not_taken_for_one(harmless):
    assert list(secrets.secrets("a", harmless, {})) == []


@pytest.mark.parametrize(
    "file", ["README.md", "config.json", "halfbyte/plan.json", "modeling_deepseek.py", "tiktoken.model"]
)
def test_a_secret_in_any_text_is_refused(refused, ready, source, file):
    path = ready / file
    text = path.read_text()
    changed = (
        text.replace("{", f'{{"note": "{TOKEN_LIKE}",', 1) if file.endswith(".json") else f"{text}\n{TOKEN_LIKE}\n"
    )
    status = path.stat()
    path.write_text(changed)
    if file != "config.json":
        card = (ready / "README.md").read_text()
        finish(ready)
        (ready / "README.md").write_text(card)
        write_provenance(ready, source)
        said = refused(ready)
        assert f"{file}, line" in said
        assert "a Hugging Face token" in said
        assert TOKEN_LIKE not in said
    else:  # the audit sees it first
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert "changed" in refused(ready)


def with_metadata(path, **entries):
    """Add metadata to a safetensors file; change nothing else."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"] = {**header.get("__metadata__", {}), **entries}
    made = json.dumps(header).encode()
    path.write_bytes(len(made).to_bytes(8, "little") + made + raw[8 + size :])


@pytest.mark.parametrize(
    ("entry", "said"),
    [(TOKEN_LIKE, "a Hugging Face token"), ("run in /home/jane/models/x", "a local path"),
     (json.dumps({"data": "/mnt/data7/rows.jsonl"}), "a local path")],
)  # fmt: skip
def test_metadata_of_tensor_files_is_looked_at(refused, ready, source, entry, said):
    folder = ready / "halfbyte/stats"
    folder.mkdir(exist_ok=True)
    file = folder / "stats.safetensors"
    shutil.copy(ready / "model-00003-of-000006.safetensors", file)
    with_metadata(file, note=entry)
    recorded(ready, source)
    told = refused(ready)
    assert f"halfbyte/stats/stats.safetensors, metadata, line 2: {said}" in told, told
    assert TOKEN_LIKE not in told


def test_metadata_of_shards_is_looked_at_and_tensors_are_not(ready):
    shard = ready / "model-00003-of-000006.safetensors"
    sent = Sent(shard.name, shard.stat().st_size, "", path=shard)
    assert metadata_text(sent) == "format: pt"
    with_metadata(shard, note=TOKEN_LIKE)
    found = of_staged(ready, Staged((sent,), (), {}, ()))
    (bad,) = [check.text for check in found if check.level == "bad"]
    assert bad == f"{shard.name}, metadata, line 2: a Hugging Face token"
    shard.write_bytes((3).to_bytes(8, "little") + b"[1]")
    with pytest.raises(CheckpointError, match="header is not JSON"):
        of_staged(ready, Staged((sent,), (), {}, ()))


def test_a_text_that_is_too_large_to_look_through_is_said(ready, monkeypatch):
    monkeypatch.setattr(checks, "MOST_TEXT_NBYTES", 3)
    path = ready / "tokenizer_config.json"
    found = of_staged(ready, Staged((Sent(path.name, path.stat().st_size, "", path=path),), (), {}, ()))
    assert "tokenizer_config.json is too large to search for secrets" in " ".join(check.text for check in found)


def test_a_trace_with_a_secret_is_refused(refused, ready, source):
    (ready / "halfbyte/probe").mkdir()
    (ready / "halfbyte/probe/probe.jsonl").write_text(json.dumps({"headers": {"Authorization": "Bearer " + "x" * 20}}))
    recorded(ready, source)
    assert "halfbyte/probe/probe.jsonl, line 1: an Authorization header" in refused(ready, "--traces", "someone/traces")


def test_the_value_of_a_key_variable_is_refused(refused, ready, source, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_API_KEY", "correct-horse-battery")
    (ready / "README.md").write_text((ready / "README.md").read_text() + "key: correct-horse-battery\n")
    said = refused(ready)
    assert "the value of the environment variable MY_SERVICE_API_KEY" in said
    assert "correct-horse" not in said


@pytest.mark.parametrize("path", ["/home/jane/models/x", "/Users/jane/x", "/root/x", "/tmp/x/y", "/mnt/data7/x",
                                  "/srv/models/x", "file:///home/jane/x", "a:/home/jane/x", "OUT"])  # fmt: skip
def test_a_local_path_in_the_card_is_refused_with_its_line(refused, ready, path):
    card = ready / "README.md"
    card.write_text(card.read_text() + f"\nls {str(ready) if path == 'OUT' else path}\n")
    said = refused(ready)
    assert "README.md, line 9: a local path" in said, said


def test_what_a_container_or_an_address_names_is_no_local_path():
    text = "-v ~/.cache/huggingface:/root/.cache/huggingface -v ./OUT:/model https://x.org/home/y/z a/tmp/x 1/2 /model"
    assert list(secrets.local_paths("a", text, Path("/nowhere"), None)) == []


def test_a_config_of_the_source_may_name_a_mount_and_no_home():
    found = secrets.local_paths("config.json", "/workspace/a/b /home/jane/x", Path("/nowhere"), None, mounts=False)
    assert len(list(found)) == 1


def test_the_folder_and_the_machine_are_found_outside_of_homes(tmp_path):
    found = [
        leak.what
        for leak in secrets.local_paths(
            "a", "serve /models/out now\non gpu-box-17\n/models/outer", Path("/models/out"), "gpu-box-17"
        )
    ]
    assert found == ["the path of this folder", "the host name of this machine"]


def test_evidence_is_sent_without_local_paths_and_the_original_stays(
    halfbyte, hub, ready, source, monkeypatch, tmp_path
):
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box-17")
    (ready / "halfbyte/probe").mkdir()
    probe = {"endpoint": {"reported": {"root": f"{ready}"}, "host": "gpu-box-17"}, "data": "/home/jane/rows.jsonl",
             "command": f"halfbyte probe http://x -o {ready}/halfbyte/probe", "scale": "1/2"}  # fmt: skip
    path = ready / "halfbyte/probe/probe.json"
    path.write_text(json.dumps(probe, indent=1))
    recorded(ready, source)
    before = path.read_bytes()
    code, said, error = halfbyte("publish", ready, REPO)
    assert code == 0, said + error
    assert path.read_bytes() == before
    sent = json.loads(hub.files(REPO)["halfbyte/probe/probe.json"])
    assert sent == {"endpoint": {"reported": {"root": "."}, "host": "HOST"}, "data": "rows.jsonl",
                    "command": "halfbyte probe http://x -o ./halfbyte/probe", "scale": "1/2"}  # fmt: skip
    record = json.loads(hub.files(REPO)["halfbyte/provenance.json"])
    assert set(record["published"]["redacted"]) == {"halfbyte/probe/probe.json"}
    for name, data in hub.files(REPO).items():
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(data)
    assert verify(tmp_path / "d").same


def test_a_plan_without_its_paths_still_passes_for_the_plan(ready):
    """A recipe names its data file, and its fingerprint includes that name."""
    path = ready / "halfbyte/plan.json"
    found, recipe = json.loads(path.read_text()), load_recipe("kimi-k2.6-nvfp4-wafer").as_dict()
    local = {"source": "/home/jane/rows.jsonl", "subset": None, "split": None}
    recipe["calibrate"]["datasets"] = [{**recipe["calibrate"]["datasets"][0], **local}]
    parts = {**found["parts"], "recipe": Recipe.of(recipe).fingerprint()}
    planned = json.dumps({**found, "recipe": recipe, "parts": parts})
    path.write_text(planned)
    assert "plan.json" not in gather(ready, None).problems
    sent = json.loads(redactor(ready)("halfbyte/plan.json", planned))
    assert sent["recipe"]["calibrate"]["datasets"][0]["source"] == "rows.jsonl"
    path.write_text(json.dumps(sent))
    assert "plan.json" not in gather(ready, None).problems
    (said,) = [finding for finding in audit(ready).findings if finding.check == "plan"]
    assert (said.level, "are not checked" in said.text) == ("note", True)
    del sent["redacted"]
    path.write_text(json.dumps(sent))
    assert "was changed after" in gather(ready, None).problems["plan.json"]


def test_a_plan_without_paths_is_sent_as_it_is(ready):
    text = (ready / "halfbyte/plan.json").read_text()
    assert redactor(ready)("halfbyte/plan.json", text) == text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.safetensors", "output"),
        ("halfbyte/card.json", "local"),
        ("halfbyte/source-README.md", "later"),
        ("figures/score.svg", "output"),
        ("README.md", "later"),
        ("halfbyte/report.html", "later"),
        ("halfbyte/release.json", "evidence"),
        ("halfbyte/journal.jsonl", "evidence"),
        ("halfbyte/stats/stats.safetensors", "evidence"),
        ("halfbyte/stats/hidden-3.bin", "local"),
        ("halfbyte/probe/probe.jsonl", "trace"),
        ("halfbyte/eval-source/eval.jsonl", "trace"),
        ("halfbyte/serve/engine.log", "local"),
        ("halfbyte/release/after.json", "local"),
        ("halfbyte/provenance.json", "local"),
        ("halfbyte/verified.json", "local"),
        (".cache/huggingface/x", "local"),
        ("sub/.git/config", "local"),
        ("__pycache__/a.pyc", "local"),
    ],
)
def test_each_file_is_something(name, kind):
    assert contents.kind(name) == kind


def test_logs_and_caches_are_not_sent(halfbyte, hub, ready):
    (ready / ".cache/huggingface").mkdir(parents=True)
    (ready / ".cache/huggingface/x").write_text("x")
    (ready / "halfbyte/serve").mkdir()
    (ready / "halfbyte/serve/engine.log").write_text(TOKEN_LIKE)
    code, said, error = halfbyte("publish", ready, REPO)
    assert code == 0, error
    assert "logs and caches are not uploaded: halfbyte/serve/engine.log" in said
    assert not [name for name in hub.files(REPO) if "log" in name or "cache" in name]
