"""Files that prune writes next to a checkpoint: it replaces only plans and keep lists, never a file of the source."""

import json

import pytest
from calibratable import SHORT, digests, small, texts
from pico import write_pico
from pruning import plan_of, some

from halfbyte.audit.run import audit
from halfbyte.cli import main as cli
from halfbyte.plan.prune_plan import read_prune_plan, write_prune_plan
from halfbyte.prune.keep_list import is_keep_list


@pytest.fixture
def source(tmp_path):
    folder = write_pico(tmp_path / "source", experts=8)
    write_prune_plan(tmp_path / "plan", plan_of(folder, some(folder, 4)))
    return folder


def run(source, *options):
    return cli.run([str(word) for word in ("prune", source, "--plan", source.parent / "plan", *options)])


@pytest.mark.parametrize("option", ["--plan-only", "--keep-list"])
@pytest.mark.parametrize("name", ["config.json", "new.json", "../source/new.json", "../link/new.json"])
def test_the_source_is_only_read(source, tmp_path, capsys, option, name):
    (tmp_path / "link").symlink_to(source)
    before = digests(source)
    assert run(source, option, source / name) == 2
    assert f"{option} would write into the source" in capsys.readouterr().err
    assert digests(source) == before


@pytest.mark.parametrize("option", ["--plan-only", "--keep-list"])
@pytest.mark.parametrize(
    "content", ["notes", "", "{}", "[]", "7", '{"model_type": "x"}', '{"kind": "halfbyte plan"}', '{"1": 2}', "[[0.5]]"]
)
def test_files_of_others_are_not_replaced(source, tmp_path, capsys, option, content):
    path = tmp_path / "there"
    path.write_text(content)
    assert run(source, option, path) == 2
    assert f"{option} would replace a file that is neither a prune plan nor a keep list" in capsys.readouterr().err
    assert path.read_text() == content


@pytest.mark.parametrize("form", ["by_layer", "counted", "in_order", "dropped"])
def test_plans_and_lists_are_replaced(source, tmp_path, form):
    path = tmp_path / "there"
    assert run(source, "--keep-list", path, "--form", form) == 0
    assert is_keep_list(json.loads(path.read_text()))
    assert run(source, "--plan-only", path) == 0
    assert read_prune_plan(path).kept() == read_prune_plan(tmp_path / "plan").kept()
    assert run(source, "--keep-list", path) == 0


def test_one_file_is_not_both(source, tmp_path, capsys):
    assert run(source, "--keep-list", tmp_path / "x", "--plan-only", tmp_path / "x") == 2
    assert "are the same file" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def changed(path, at):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("how", ["given", "measured"])
def test_audit_finds_a_changed_byte_of_the_statistics(tmp_path, how):
    """For a checkpoint that was only pruned, nothing else depends on them."""
    source, out = small(tmp_path / "source", experts=8), tmp_path / "out"
    data = ["--data", f"news={texts(tmp_path / 'texts.jsonl')}", "--samples", 6]
    if how == "given":
        recipe = ["-r", "kimi-k2.6-nvfp4-reap192", "--set", SHORT]
        assert command("calibrate", source, *recipe, *data, "-o", tmp_path / "stats") == 0
        data = ["--stats", tmp_path / "stats"]
    else:
        data += ["--length", 24]
    assert command("prune", source, out, "--keep", 4, *data, "--no-loops") == 0
    path = out / "halfbyte/stats/stats.safetensors"
    size = path.stat().st_size
    assert audit(out).failed == []
    assert {finding.check: finding.level for finding in audit(out).findings}["statistics"] == "good"
    for at in (9, size // 3, size // 2, size - 1):
        changed(path, at)
        assert audit(out).failed == ["statistics"]
        changed(path, at)
    assert audit(out, against=source).failed == []
    path.unlink()
    assert {finding.check: finding.level for finding in audit(out).findings}["statistics"] == "note"


def command(*argv):
    return cli.run([str(word) for word in argv])
