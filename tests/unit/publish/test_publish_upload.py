"""`halfbyte publish` against a fake Hub, with the real huggingface_hub: uploads and failures."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from fake_hub import PART_NBYTES, TOKEN, FakeHub, Fault
from release_folder import finish

from halfbyte.publish.hub import hub as sending
from halfbyte.publish.hub.staging import Sent
from halfbyte.publish.verify import verify

REPO = "someone/kimi-4bit"


def download(files, where):
    for name, data in files.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(data)
    return where


def everything(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_arrives_is_what_lies_here(halfbyte, hub, ready, tmp_path):
    before = everything(ready)
    code, said, error = halfbyte("publish", ready, REPO)
    assert code == 0, error
    arrived = hub.files(REPO)
    for name in ("config.json", "LICENSE", "README.md", *(path.name for path in ready.glob("*.safetensors"))):
        assert arrived[name] == (ready / name).read_bytes()
    assert "halfbyte/hashed.json" not in arrived
    assert everything(ready) == before  # nothing is left in the folder, no .cache either
    found = verify(download(arrived, tmp_path / "download"))
    assert found.same, found.differences
    assert found.not_covered == ()  # the card is in the record now
    assert "uploaded " in said and " already present" in said
    assert all(right for _, path, right in hub.requests if path.startswith(("/api/models/", "/api/repos/")))
    assert not any(right for _, path, right in hub.requests if path.startswith("/store/"))


def test_the_weights_come_first_and_what_makes_them_a_checkpoint_last(halfbyte, hub, ready):
    assert halfbyte("publish", ready, REPO, "-m", "first")[0] == 0
    commits = hub.repos[f"models/{REPO}"].commits
    assert [message for _, message, _ in commits] == ["first", "first (part 2)"]
    assert all(name.endswith(".safetensors") for name in commits[0][2])
    assert {"config.json", "README.md", "model.safetensors.index.json"} <= set(commits[-1][2])


def test_groups_are_of_some_size(monkeypatch):
    monkeypatch.setattr(sending, "GROUP_NBYTES", 10)
    files = [Sent(f"{n}.safetensors", 4, "", data=None) for n in range(5)] + [Sent("config.json", 1, "", data=b"x")]
    assert [[file.name[0] for file in group] for group in sending.groups(files)] == [
        ["0", "1"],
        ["2", "3"],
        ["4"],
        ["c"],
    ]


def test_a_second_run_sends_nothing(halfbyte, hub, ready):
    assert halfbyte("publish", ready, REPO)[0] == 0
    received, commits = len(hub.received), len(hub.repos[f"models/{REPO}"].commits)
    code, said, _ = halfbyte("publish", ready, REPO)
    assert code == 0
    assert "uploaded 0 files" in said
    assert (len(hub.received), len(hub.repos[f"models/{REPO}"].commits)) == (received, commits)


def test_a_dry_run_makes_no_request(halfbyte, hub, ready, monkeypatch):
    def refuse(*_):
        raise AssertionError("a socket was connected")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("HF_TOKEN")
    code, said, error = halfbyte("publish", ready, REPO, "--dry-run")
    assert code == 0, error
    assert "model-00001" in said
    assert "nothing was uploaded" in error
    assert hub.requests == []
    assert hub.repos == {}


def test_a_dry_run_lists_what_is_then_sent(halfbyte, hub, ready):
    _, said, _ = halfbyte("--json", "publish", ready, REPO, "--dry-run")
    listed = {row["file"]: row["sha256"] for row in json.loads(said)["files"]}
    assert halfbyte("publish", ready, REPO)[0] == 0
    assert listed == {name: hashlib.sha256(data).hexdigest() for name, data in hub.files(REPO).items()}


def test_private_gated_and_a_branch(halfbyte, hub, ready):
    assert halfbyte("publish", ready, REPO, "--private", "--gated", "manual", "--revision", "v1")[0] == 0
    repo = hub.repos[f"models/{REPO}"]
    assert (repo.private, repo.gated) == (True, "manual")
    assert "config.json" in repo.branches["v1"]
    assert repo.branches["main"] == {}
    paths = [path for _, path, _ in hub.requests]
    first = next(at for at, path in enumerate(paths) if "preupload" in path)
    assert any(path.endswith("/settings") for path in paths[:first])  # before a byte is there to be seen


def test_private_does_not_leak_into_a_public_repository(halfbyte, hub, ready):
    assert halfbyte("publish", ready, REPO)[0] == 0
    (ready / "README.md").write_text((ready / "README.md").read_text() + "more\n")
    code, _, error = halfbyte("publish", ready, REPO, "--private")
    assert code == 2
    assert "already public" in error
    assert b"more" not in hub.files(REPO)["README.md"]


def test_traces_have_their_own_repository(halfbyte, hub, ready, source):
    from halfbyte.publish.provenance import write_provenance

    (ready / "halfbyte/probe").mkdir()
    trace = json.dumps({"answer": "see /tmp/x.py", "root": str(ready)}) + "\n"
    (ready / "halfbyte/probe/probe.jsonl").write_text(trace)
    write_provenance(ready, source)
    finish(ready)
    write_provenance(ready, source)
    assert halfbyte("publish", ready, REPO)[0] == 0
    assert not [name for name in hub.files(REPO) if name.endswith("probe.jsonl")]
    code, _, error = halfbyte("publish", ready, REPO, "--traces", "someone/traces")
    assert code == 0, error
    beside = hub.files("someone/traces", kind="datasets")
    assert beside["probe/probe.jsonl"] == b'{"answer": "see /tmp/x.py", "root": "."}\n'
    assert b"Traces of someone/kimi-4bit" in beside["README.md"]
    assert json.loads(hub.files(REPO)["halfbyte/provenance.json"])["published"]["traces"] == "someone/traces"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/repos/create"),
        ("GET", "/tree/"),
        ("POST", "/preupload/"),
        ("POST", "/objects/batch"),
        ("PUT", "/store/.*/2"),
        ("POST", "/complete"),
        ("POST", "/commit/"),
    ],
)
@pytest.mark.parametrize("what", ["429", "500", "drop", "lose"])
def test_passing_faults_are_waited_out(halfbyte, hub, ready, tmp_path, method, path, what):
    status = {"status": int(what), "what": "status"} if what.isdigit() else {"what": what}
    hub.faults.append(Fault(method, path, **status, headers={"Retry-After": "1"} if what == "429" else {}))
    code, _, error = halfbyte("publish", ready, REPO)
    assert code == 0, error
    assert hub.faults[0].times == 0
    assert verify(download(hub.files(REPO), tmp_path / "download")).same
    messages = [message for _, message, _ in hub.repos[f"models/{REPO}"].commits]
    assert len(messages) == 2  # a lost answer is not committed twice
    assert "signature" not in error  # addresses of uploads are signed
    assert "http://" not in error


def test_a_slow_hub_is_waited_for(halfbyte, hub, ready):
    hub.faults.append(Fault("PUT", "/store/", "slow", times=2))
    assert halfbyte("publish", ready, REPO)[0] == 0


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (401, {}, "{}", "the Hub rejected the token"),
        (403, {}, '{"error": "You need write access"}', "no write access to the repository: You need write access"),
        (404, {}, "{}", "unknown repository"),
        (403, {"X-Error-Code": "GatedRepo"}, "{}", "is gated"),
        (403, {}, '{"error": "Private repository storage limit reached"}', "storage quota on the Hub is exceeded"),
        (413, {}, "{}", "storage quota on the Hub is exceeded"),
        (429, {}, "{}", "rate limited by the Hub"),
        (503, {}, "{}", "server error of the Hub (HTTP 503)"),
        (418, {}, '{"error": "I am a teapot"}', "rejected the request (HTTP 418): I am a teapot"),
    ],
)
@pytest.mark.parametrize("path", ["/api/repos/create", "/commit/", "/store/.*/1$"])
def test_what_stays_wrong_is_one_sentence(halfbyte, hub, ready, status, headers, body, said, path):
    body = body.replace("write access", f"write access, not {TOKEN}")
    hub.faults.append(Fault("PUT" if "store" in path else "POST", path, "status", 999, status, headers, body))
    code, _, error = halfbyte("publish", ready, REPO)
    assert code == 3
    assert said.replace("You need write access", "You need write access, not ***") in error
    assert TOKEN not in error
    assert "Traceback" not in error
    assert "signature" not in error
    assert error.count("✗") == 1


def test_a_hub_that_is_not_there_is_one_sentence(halfbyte, hub, ready):
    hub.close()
    code, _, error = halfbyte("publish", ready, REPO)
    assert code == 3
    assert "cannot be reached" in error
    assert "run the same command again" in error


def test_offline_is_one_sentence(halfbyte, hub, ready, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, _, error = halfbyte("publish", ready, REPO)
    assert code == 3
    assert "HF_HUB_OFFLINE is set" in error
    assert hub.requests == []


def test_nobody_logged_in_is_one_sentence(halfbyte, hub, ready, monkeypatch, tmp_path):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    code, _, error = halfbyte("publish", ready, REPO)
    assert code == 3
    assert "not logged in to the Hub" in error
    assert hub.requests == []


@pytest.mark.parametrize(
    "name", ["kimi", "a/b/c", "../x", "a/..", "a b/c", "a/b.git", "-a/b", "a/b--c", "hf://a/b", "a/" + "b" * 100]
)
def test_names_are_checked_first(halfbyte, hub, ready, name):
    for arguments in ((name,), (REPO, "--traces", name)):
        code, _, error = halfbyte("publish", ready, *((name,) if arguments == (name,) else arguments), "--dry-run")
        if name.startswith("-") and arguments == (name,):
            assert code == 2
            continue
        assert code == 2
        assert "is not a valid repository name" in error


@pytest.mark.parametrize("branch", ["refs/pr/1", "a..b", "/x", "x/", "a b", ""])
def test_branches_are_checked_first(halfbyte, hub, ready, branch):
    code, _, error = halfbyte("publish", ready, REPO, "--revision", branch)
    assert code == 2
    assert "is not a valid branch name" in error
    assert hub.requests == []


def test_files_of_another_upload_are_told(halfbyte, hub, ready):
    assert halfbyte("publish", ready, REPO)[0] == 0
    hub.files(REPO)["model-00001-of-000099.safetensors"] = b"old"
    _, _, error = halfbyte("publish", ready, REPO)
    assert "also contains 1 files from elsewhere: model-00001-of-000099.safetensors" in error


def test_a_file_that_changes_while_it_is_sent_is_refused(halfbyte, hub, ready, monkeypatch):
    shard = sorted(ready.glob("*.safetensors"))[0]
    real = sending._operation

    def change(file):
        made = real(file)
        if file.path == shard:
            os.utime(shard, ns=(1, 1))
        return made

    monkeypatch.setattr(sending, "_operation", change)
    code, _, error = halfbyte("publish", ready, REPO)
    assert code == 2
    assert "changed during the upload" in error
    assert hub.repos[f"models/{REPO}"].commits == []


def publish_process(hub: FakeHub, out, home):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "HF_HOME": str(home)}
    command = [sys.executable, "-m", "halfbyte", "publish", str(out), REPO]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_in_the_middle_and_resumed(ready, tmp_path):
    """With a user's environment: HF_ENDPOINT, HF_TOKEN, and a separate process."""
    hub = FakeHub()
    try:
        third = sorted(ready.glob("*.safetensors"))[2]
        oid = hashlib.sha256(third.read_bytes()).hexdigest()
        assert third.stat().st_size > PART_NBYTES
        hub.faults.append(Fault("PUT", f"/store/{oid}/2", "hang"))
        before = everything(ready)
        process = publish_process(hub, ready, tmp_path / "home")
        assert hub.hanging.wait(60), process.communicate(timeout=5)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert everything(ready) == before
        whole = set(hub.objects)
        assert len(whole) == 2
        assert hub.files(REPO) == {}
        again = publish_process(hub, ready, tmp_path / "home")
        said, error = again.communicate(timeout=120)
        assert again.returncode == 0, error
        assert verify(download(hub.files(REPO), tmp_path / "download")).same
        for sent in whole:  # nothing was uploaded twice
            parts = [part for found, part in hub.received if found == sent]
            assert len(parts) == len(set(parts))
        assert TOKEN not in said + error
        assert everything(ready) == before
    finally:
        hub.close()


def test_what_the_hub_keeps_otherwise_is_no_success(halfbyte, hub, ready, monkeypatch):
    real = sending.Upload._commit

    def damage(self, group, operations):
        real(self, group, operations)
        files = hub.files(REPO)
        if "config.json" in files:
            files["config.json"] += b" "

    monkeypatch.setattr(sending.Upload, "_commit", damage)
    code, _, error = halfbyte("publish", ready, REPO)
    assert (code, "'config.json' on the Hub does not match the local file" in error) == (3, True)
