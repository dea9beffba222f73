"""Server identity: answers of one checkpoint are never reused for another."""

import pytest
from known_answers import knows, saved

from halfbyte.evaluate.suites import load_suite

pytest.importorskip("lm_eval")
CHATS = 24


@pytest.fixture
def chats(mini, monkeypatch):
    """Return a function that evaluates with a chat-only suite."""
    whole = load_suite("mini")
    only = whole.model_copy(update={"tasks": [task for task in whole.tasks if task.api == "chat"]})
    monkeypatch.setattr("halfbyte.evaluate.run.load_suite", lambda _: only)
    return lambda *argv, out="out": mini(*argv, suite="mini", out=out)


def test_a_chat_with_another_checkpoint_of_the_same_texts_is_asked_again(fake, chats):
    url, server = fake
    knows(server)
    chats(url)
    chats(url)
    assert len(server.items()) == CHATS
    server.weights = "another"
    _, _, said = chats(url)
    assert len(server.items()) == 2 * CHATS and "cannot be identified as the server of the earlier run" in said


@pytest.mark.parametrize("refused", [False, True])
def test_without_log_probabilities_the_start_of_the_server_decides(fake, chats, refused):
    url, server = fake
    knows(server)
    server.no_logprobs, server.refuses_logprobs, server.started = True, refused, "1.5e9"
    chats(url)
    _, _, said = chats(url)
    assert len(server.items()) == CHATS and "--same-server" not in said
    server.started = "1.6e9"
    chats(url)
    assert len(server.items()) == 2 * CHATS
    server.started = "1.7e9"
    chats(url, "--same-server")
    assert len(server.items()) == 2 * CHATS


def test_a_server_without_identity_is_new_unless_trusted(fake, chats):
    url, server = fake
    knows(server)
    server.no_logprobs = True
    _, _, said = chats(url)
    assert "resuming an earlier run requires --same-server" in said
    chats(url)
    assert len(server.items()) == 2 * CHATS
    _, _, said = chats(url, "--same-server")
    assert len(server.items()) == 2 * CHATS and "all from an earlier run" in said
    server.salt = "another "  # a visible change: earlier answers are not reused
    chats(url, "--same-server")
    assert len(server.items()) == 3 * CHATS


def test_a_server_compared_with_itself_is_reported(fake, chats, tmp_path):
    url, server = fake
    knows(server)
    code, printed, _ = chats(url, "--against", url, "--margin", 0.9)
    assert code == 0 and "ACCEPT" in printed and "compares a checkpoint with itself (A/A test)" in printed
    assert len(server.items()) == 2 * CHATS
    assert "A/A" in saved(tmp_path / "out")["same_checkpoint_warning"]
    chats(url, "--against", url)
    assert len(server.items()) == 2 * CHATS, "what is finished of both sides is kept"


@pytest.mark.parametrize("known", [True, False])
def test_a_baseline_of_the_same_server_is_reported(fake, chats, tmp_path, known):
    url, server = fake
    knows(server)
    server.no_logprobs = not known
    chats(url, out="first")
    code, printed, _ = chats(url, "--baseline", tmp_path / "first", "--margin", 0.9)
    assert code == 0 and "ACCEPT" in printed and "(A/A test)" in printed
    assert ("may compare" in printed) is not known
    assert len(server.items()) == 2 * CHATS


def test_one_checkpoint_at_two_addresses_is_recognized(start_fake, chats, tmp_path):
    (first, a), (second, b) = start_fake(), start_fake()
    knows(a)
    knows(b)
    assert "(A/A test)" in chats(first, "--against", second)[1]
    b.weights = "another"
    assert "A/A" not in chats(first, "--against", second)[1]
    assert saved(tmp_path / "out")["same_checkpoint_warning"] is None


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "another"},
        {"salt": "another "},
        {"version": "2"},
        {"models": [{"id": "n", "root": "/checkpoint", "max_model_len": 100_000}]},
        {"models": [{"id": "m", "root": "/another", "max_model_len": 100_000}]},
    ],
)
def test_a_model_swapped_during_a_task_discards_its_score(fake, chats, tmp_path, change):
    url, server = fake
    knows(server)
    before = {name: getattr(server, name) for name in change}
    server.changes = {10: change}
    code, _, said = chats(url)
    assert code == 1 and "ANOMALOUS: the server changed during kimi_mini_copying" in said
    assert not (tmp_path / "out" / "eval.json").exists()
    for name, value in before.items():
        setattr(server, name, value)
    assert chats(url)[0] == 0
    assert len(server.items()) == 2 * CHATS, "none of those answers is used, also by the checkpoint that gave some"


def test_a_restart_of_the_same_checkpoint_is_accepted_with_log_probabilities(fake, chats):
    url, server = fake
    knows(server)
    server.started, server.changes = "1", {10: {"started": "2"}}
    assert chats(url, out="known")[0] == 0
    server.no_logprobs, server.changes = True, {CHATS + 10: {"started": "3"}}
    assert "started was 2 and is 3" in chats(url, out="unknown")[2]


def test_tasks_finished_before_the_swap_are_kept(fake, mini):
    url, server = fake
    knows(server)
    server.changes = {30: {"weights": "another"}}  # in the second of two tasks
    assert mini(url)[0] == 1
    server.weights = ""
    assert mini(url)[0] == 0
    assert len(server.items()) == 3 * CHATS


@pytest.mark.parametrize("swapped", [True, False])
def test_ctrl_c_after_a_swap_does_not_keep_the_others_answers(fake, chats, monkeypatch, swapped):
    """Users who notice that the wrong checkpoint is served stop the run, serve the right one, and rerun."""
    url, server = fake
    knows(server)
    server.changes = {5: {"weights": "another"}} if swapped else {}

    def stop(_, __, done, ___):
        if done == 15:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("halfbyte.evaluate.report.ProgressLines.__call__", stop)
        code, _, said = chats(url)
    assert (code, "its answers are discarded" in said) == ((1, True) if swapped else (130, False))
    server.weights, asked = "", len(server.items())
    assert chats(url)[0] == 0
    assert len(server.items()) - asked == (CHATS if swapped else CHATS - 15)
