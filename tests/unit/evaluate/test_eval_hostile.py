"""Failures around a run: a full disk, a folder with an odd name, edited lines."""

import errno
import json
import os
import shlex

import pytest
from known_answers import LIMIT, ROOT, knows, saved

pytest.importorskip("lm_eval")


def test_a_full_disk_leaves_no_partial_file_and_the_run_resumes(fake, mini, tmp_path, monkeypatch):
    url, server = fake
    knows(server)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(
            "halfbyte.checkpoint.atomic_write.os.fsync", full
        )  # which is every fsync: of the requests as well
        code, _, said = mini(url)
    assert code == 3 and "the disk is full" in said and "finished requests are kept" in said
    assert str(tmp_path / "out") in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["requests.jsonl"]
    assert mini(url)[0] == 0
    assert len(server.items()) <= 2 * LIMIT + 4, "what is asked twice was on its way when the disk was full"


@pytest.mark.parametrize("name", ["größe 日本", "it's", "-o"])
def test_a_folder_of_any_name_works_and_the_next_command_can_be_copied(fake, mini, tmp_path, name):
    url, server = fake
    knows(server)
    code, _, said = mini(url, out=f"x/{name}")
    assert code == 0
    assert hint_of(said)[-1] == str(tmp_path / "x" / name)


def hint_of(said):
    (line,) = (line for line in said.splitlines() if line.startswith("next: "))
    return shlex.split(line)[2:]


@pytest.mark.parametrize("folder", [[], ["-o", "mine"]])
def test_the_next_command_runs_as_it_stands(start_fake, halfbyte, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    (url, server), (url2, other) = start_fake(), start_fake()
    knows(server)
    knows(other)
    asked = ("--suite", "mini-generative", "--data-dir", ROOT, "--limit", LIMIT, "--concurrency", 2)
    words = hint_of(halfbyte("eval", url, *asked, *folder)[2])
    code, _, said = halfbyte(*[url2 if word == "URL2" else word for word in words])
    assert code == 0 and "differ in more than the checkpoint" not in said
    written = tmp_path / (folder[1] if folder else "eval-mini-generative")
    assert saved(written.with_name(f"{written.name}-2"))["baseline"]["folder"] == str(written.relative_to(tmp_path))


@pytest.mark.parametrize("line", ["[]", "null", "1", '{"kind": "request"}', '{"kind": "endpoint"}', "{}", '{"key": 1}'])
def test_invalid_journal_lines_are_ignored(fake, mini, tmp_path, line):
    url, server = fake
    knows(server)
    mini(url)
    asked = len(server.items())
    with (tmp_path / "out" / "requests.jsonl").open("a") as file:
        file.write(line + "\n")
    code, _, said = mini(url)
    assert code == 0 and "1 lines of" in said and "are unreadable" in said
    assert len(server.items()) == asked


def test_a_larger_limit_sends_only_new_requests(fake, halfbyte, tmp_path):
    url, server = fake
    knows(server)
    for limit in (4, 6, 2):
        argv = ("--suite", "mini-generative", "--data-dir", ROOT, "--limit", limit, "-o", tmp_path / "out")
        assert halfbyte("eval", url, *argv)[0] == 0
        assert saved(tmp_path / "out")["tasks"][0]["candidate"]["samples"] == limit
        assert len((tmp_path / "out" / "eval.jsonl").read_text().splitlines()) == 2 * limit
    assert len(server.items()) == 2 * 6


def test_an_output_path_that_is_a_file_is_refused(fake, mini, tmp_path):
    url, server = fake
    (tmp_path / "out").write_text(json.dumps("mine"))
    code, _, said = mini(url)
    assert code == 2 and "is a file" in said
    assert server.asked == [] and (tmp_path / "out").read_text() == '"mine"'


def test_git_is_not_run(fake, mini, tmp_path, monkeypatch):
    """lm-eval calls it after each task, and it prints a complaint if the data is not in a repository."""
    url, server = fake
    knows(server)
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(tmp_path / 'called'))}\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{git.parent}:{os.environ['PATH']}")
    assert mini(url)[0] == 0
    assert not (tmp_path / "called").exists()
