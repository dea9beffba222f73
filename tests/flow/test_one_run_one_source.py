"""One run at a time in a folder, and one source from start to end."""

import fcntl
import json
import os

import pytest
from pico import write_pico
from safetensors.torch import load_file, save_file

from halfbyte.audit.diff import diff
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.recipe.load import load_recipe
from halfbyte.release.status import read_status

RECIPE = load_recipe("kimi-k2.6-mxfp4-wafer")
KIND = "int4-k2.6"


@pytest.fixture
def source(tmp_path):
    return write_pico(tmp_path / "source", KIND)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def test_a_second_run_is_refused_and_touches_nothing(source, tmp_path):
    out = tmp_path / "out"
    quantize(source, out, RECIPE)
    (out / "config.json").unlink()
    part = out / "model-00001-of-000006.safetensors.part"
    part.write_bytes(b"another run is writing this")
    running = os.open(out / "halfbyte", os.O_RDONLY)
    fcntl.flock(running, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another run is writing"):
        quantize(source, out, RECIPE)
    assert part.read_bytes() == b"another run is writing this"
    os.close(running)
    quantize(source, out, RECIPE)
    assert not part.exists()


def test_other_weights_of_the_same_shape_do_not_resume(source, tmp_path):
    other, out = write_pico(tmp_path / "other", KIND, seed=7), tmp_path / "out"
    assert plan(source, RECIPE).fingerprint() == plan(other, RECIPE).fingerprint()
    quantize(source, out, RECIPE)
    before = files(out)
    with pytest.raises(UsageError, match="different weights with the same names and shapes"):
        quantize(other, out, RECIPE)
    assert files(out) == before


def test_a_source_that_changes_meanwhile_makes_nothing_final(source, tmp_path):
    shards = sorted(source.glob("*.safetensors"))

    def meddle(progress):
        if progress.shard:
            for shard in shards:
                shard.touch()

    with pytest.raises(CheckpointError, match="changed while it was read"):
        quantize(source, tmp_path / "out", RECIPE, threads=1, progress=meddle)
    assert len(files(tmp_path / "out")) == 1
    assert not list((tmp_path / "out").glob("*.part"))


def test_a_change_before_a_shard_is_first_read_counts_too(source, tmp_path):
    """The verified bytes must be the ones that are read later."""
    last = max(source.glob("*.safetensors"))

    def meddle(progress):
        if progress.shard:
            last.touch()

    with pytest.raises(CheckpointError, match="changed while it was read") as caught:
        quantize(source, tmp_path / "out", RECIPE, threads=1, progress=meddle)
    assert caught.value.where == last.name


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"parts": 5}', '{"parts": {}, "shards": [], "recipe": {}}'])
def test_a_damaged_plan_is_said(source, tmp_path, text):
    quantize(source, tmp_path / "out", RECIPE)
    (tmp_path / "out" / "halfbyte" / "plan.json").write_text(text)
    for command in (lambda out: quantize(source, out, RECIPE), read_status):
        with pytest.raises(UsageError, match=r"cannot be read|another plan"):
            command(tmp_path / "out")


def test_lines_of_a_journal_that_are_no_entries_do_not_count(source, tmp_path):
    quantize(source, tmp_path / "out", RECIPE)
    with (tmp_path / "out" / "halfbyte" / "journal.jsonl").open("a") as journal:
        journal.write('[1]\n7\n"x"\n')
    assert read_status(tmp_path / "out").shards_done == 6
    assert quantize(source, tmp_path / "out", RECIPE).resumed == 6


def test_a_shard_of_tensors_without_elements(source, tmp_path):
    for shard in source.glob("*.safetensors"):
        tensors = load_file(shard)
        if any(name.startswith("mm_projector") for name in tensors):
            small = {name: t.reshape(-1)[:0] if name.startswith("mm_projector") else t for name, t in tensors.items()}
            save_file(small, shard)
    quantize(source, tmp_path / "out", RECIPE)
    assert diff(source, tmp_path / "out").same_bytes > 0


def test_layers_without_experts_are_refused_and_all_layers_are_no_truncation(source):
    with pytest.raises(UsageError, match="contain no experts") as caught:
        plan(source, RECIPE, layers=1)
    assert caught.value.fix == "pass 2 or more"
    assert plan(source, RECIPE, layers=3).fingerprint() == plan(source, RECIPE).fingerprint()
    with pytest.raises(UsageError, match="4 layers requested, but the model has 3") as caught:
        plan(source, RECIPE, layers=4)
    assert caught.value.fix == "pass 3 or fewer, or omit it for all layers"


def test_diff_sees_a_change_that_bf16_would_hide(source, tmp_path):
    other = write_pico(tmp_path / "other", KIND)
    for shard in other.glob("*.safetensors"):
        tensors = load_file(shard)
        for name in tensors:
            if name.endswith("e_score_correction_bias"):
                tensors[name] = tensors[name] * 1.0005
        save_file(tensors, shard)
    found = diff(source, other)
    assert found.different
    assert {d.name.rpartition(".")[2] for d in found.different} == {"e_score_correction_bias"}


def test_the_journal_is_json_even_where_nothing_is_lost(tmp_path):
    lossless = write_pico(tmp_path / "source", "mxfp4")
    quantize(lossless, tmp_path / "out", RECIPE)
    lines = (tmp_path / "out" / "halfbyte" / "journal.jsonl").read_text().split("\n")
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines if line]


def test_the_time_left_is_told_from_the_last_run_alone(source, tmp_path):
    """A resumed run counts its seconds from its own start."""
    quantize(source, tmp_path / "out", RECIPE)
    journal = tmp_path / "out" / "halfbyte" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().split("\n") if line]
    seconds = [1000, 2000, 10, 20, 30]  # two shards in a slow run, three in a fast one, one is missing
    for line, value in zip(lines, seconds, strict=False):
        line["seconds"] = value
    journal.write_text("\n".join(json.dumps(line) for line in lines[:5]) + "\n")
    left = read_status(tmp_path / "out").eta_seconds
    fast = sum(line["nbytes"] for line in lines[2:5])
    assert left == pytest.approx(lines[5]["nbytes"] / (fast / 30))


def test_an_empty_folder_of_ours_is_empty_and_a_file_of_that_name_is_not(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "halfbyte").write_text("not ours")
    with pytest.raises(UsageError, match="not empty"):
        quantize(source, tmp_path / "out", RECIPE)
    (tmp_path / "out" / "halfbyte").unlink()
    (tmp_path / "out" / "halfbyte").mkdir()
    assert quantize(source, tmp_path / "out", RECIPE).shards == 6


def test_an_audit_is_shown_even_where_it_cannot_be_saved(source, tmp_path, halfbyte, monkeypatch):
    quantize(source, tmp_path / "out", RECIPE)

    def full(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("halfbyte.evidence.record.write_whole", full)
    code, shown, errors = halfbyte("audit", tmp_path / "out")
    assert code == 3
    assert "shards have the size and SHA-256" in shown
    assert "Read-only file system" in errors
