"""The loop test at the end of prune: its verdict, where it is stored, and no harm to the checkpoint."""

import json
from pathlib import Path

import pytest
from calibratable import digests, small
from pico import write_pico
from pruning import plan_of, some

from halfbyte.audit.run import audit
from halfbyte.cli import main as cli
from halfbyte.degeneracy import generate, loop_test
from halfbyte.degeneracy.generate import Written
from halfbyte.degeneracy.loop_test import rate_of
from halfbyte.doctor import facts as doctor
from halfbyte.plan.prune_plan import write_prune_plan

FINE = Written(" ".join(f"word{at}" for at in range(30)), 30, True)
LOOP = Written("saliva " * 60, 60, False)
MINI = Path(__file__).parents[2] / "models/kimi-mini"


def run(*argv):
    return cli.run([str(argument) for argument in argv])


def command(source, out, tmp_path, *options):
    write_prune_plan(tmp_path / "plan", plan_of(source, some(source, 4)))
    return ["prune", source, out, "--plan", tmp_path / "plan", *options]


@pytest.fixture
def source(tmp_path):
    return small(tmp_path / "source", experts=8)


@pytest.fixture
def asked(monkeypatch):
    """Models with scripted texts, and their prompts."""
    told, prompts = {}, []

    def writes(folder, *, prompts: list, **settings):
        asked_for.append((folder.name, len(prompts), settings))
        texts = [LOOP if at < told.get(folder.name, 0) else FINE for at in range(len(prompts))]
        return rate_of(texts * 2, len(prompts))

    asked_for = prompts
    monkeypatch.setattr(loop_test, "loop_rate", writes)
    return told, asked_for


def test_a_real_model_is_asked_with_its_source(source, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(*command(source, out, tmp_path, "--loops", 2)) in (0, 1)
    said = capsys.readouterr().out
    found = json.loads((out / "halfbyte/loops.json").read_text())
    assert (found["texts"], found["source"]["texts"], found["tokens"]) == (4, 4, 256)
    assert f"loops in {found['loops']} of 4 texts" in said and f"the source in {found['source']['loops']}" in said
    assert audit(out, against=source).failed == []


def test_what_loops_is_flagged_and_stays(source, tmp_path, capsys, asked):
    asked[0]["out"] = 9
    out = tmp_path / "out"
    assert run(*command(source, out, tmp_path)) == 1
    said = capsys.readouterr()
    assert "✗ loops in 18 of 32 texts" in said.out and "the source in 0" in said.out
    assert "--restore" in said.err
    assert [(name, count) for name, count, _ in asked[1]] == [("out", 16), ("source", 16)]
    assert {settings["tokens"] for _, _, settings in asked[1]} == {256}
    found = json.loads((out / "halfbyte/loops.json").read_text())
    assert found["flagged"] and found["loops"] == 18
    assert audit(out, against=source).failed == ["loops"]  # and nothing else: every byte is as planned


def test_a_source_that_loops_as_much_is_no_reason_to_flag(source, tmp_path, capsys, asked):
    asked[0].update(out=9, source=9)
    assert run(*command(source, tmp_path / "out", tmp_path, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loops"]["flagged"] is False and found["loops"]["source"]["loops"] == 18


def test_who_does_not_want_it_has_none(source, tmp_path, asked):
    assert run(*command(source, tmp_path / "out", tmp_path, "--no-loops")) == 0
    assert asked[1] == [] and not (tmp_path / "out/halfbyte/loops.json").exists()


def test_the_two_options_contradict_each_other(source, tmp_path, capsys):
    assert run(*command(source, tmp_path / "out", tmp_path, "--no-loops", "--loops", 3)) == 2
    assert "--loops and --no-loops" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_that_takes_minutes_is_asked_on_demand(source, tmp_path, capsys, asked, monkeypatch):
    monkeypatch.setattr(loop_test, "QUICK_NBYTES", 1000)
    assert run(*command(source, tmp_path / "out", tmp_path)) == 0
    assert (
        "! loops: not measured, the test would take minutes; serve the model and run `halfbyte probe`"
        in capsys.readouterr().out
    )
    assert asked[1] == []
    assert run(*command(source, tmp_path / "out", tmp_path, "--loops", 3)) == 0
    assert [count for _, count, _ in asked[1]] == [3, 3]


def test_a_model_that_does_not_fit_is_not_asked(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(generate, "memory_facts", lambda: doctor.Memory(10**9, 10**4, None))
    assert run(*command(source, tmp_path / "out", tmp_path)) == 0
    assert (
        "! loops: not measured, not enough memory to decode the weights; serve the model and" in capsys.readouterr().out
    )
    assert not (tmp_path / "out/halfbyte/loops.json").exists()


def test_a_source_that_does_not_fit_is_not_compared(source, tmp_path, capsys, monkeypatch):
    whole = generate.decoded_nbytes(source)
    monkeypatch.setattr(generate, "memory_facts", lambda: doctor.Memory(10**9, whole - 1, None))
    monkeypatch.setattr(generate, "_ROOM", 1)
    assert run(*command(source, tmp_path / "out", tmp_path, "--loops", 1)) in (0, 1)
    assert json.loads((tmp_path / "out/halfbyte/loops.json").read_text())["source"] is None


def test_a_checkpoint_without_words_is_pruned_all_the_same(tmp_path, capsys):
    source = write_pico(tmp_path / "source", experts=8)
    assert run(*command(source, tmp_path / "out", tmp_path)) == 0
    assert "! loops: not measured, " in capsys.readouterr().out


def test_ctrl_c_leaves_the_checkpoint_as_it_is(source, tmp_path, capsys, monkeypatch):
    assert run(*command(source, tmp_path / "quiet", tmp_path, "--no-loops")) == 0
    monkeypatch.setattr(loop_test, "loop_rate", interrupted)
    capsys.readouterr()
    assert run(*command(source, tmp_path / "out", tmp_path)) == 130
    said = capsys.readouterr()
    assert "loop test interrupted; the checkpoint is complete" in said.err
    assert f"halfbyte loops {tmp_path / 'out'} --against {source}" in said.err
    assert "written" in said.out  # the run's own report comes all the same
    assert digests(tmp_path / "out") == digests(tmp_path / "quiet")
    assert not list((tmp_path / "out").rglob("*.part")) and not (tmp_path / "out/halfbyte/loops.json").exists()
    assert run("audit", tmp_path / "out", "--against", source) == 0


def interrupted(*_args, **_settings):
    raise KeyboardInterrupt


def test_kimi_mini_without_most_of_its_experts_is_flagged(tmp_path, capsys, monkeypatch):
    """The real loop test, with short texts: a heavily pruned model stops early."""
    monkeypatch.setattr(loop_test, "QUICK_TOKENS", 60)
    kept = dict.fromkeys(some(MINI, 8), tuple(range(8)))
    write_prune_plan(tmp_path / "plan", plan_of(MINI, kept))
    assert run("prune", MINI, tmp_path / "out", "--plan", tmp_path / "plan", "--loops", 6) == 1
    found = json.loads((tmp_path / "out/halfbyte/loops.json").read_text())
    assert found["flagged"] and found["p"] < loop_test.SIGNIFICANT and found["source"]["loops"] == 0
    assert "the pruned model loops in" in capsys.readouterr().err
