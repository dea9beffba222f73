"""`halfbyte verify`: every change of a folder is detected, also on a download."""

import json
import os
import shutil
from pathlib import Path

import pytest

from halfbyte.checkpoint import hashing
from halfbyte.checkpoint.hashing import HashProgress
from halfbyte.cli import hash_progress as show_hashing
from halfbyte.evidence.provenance import Provenance
from halfbyte.publish.card.write import write_card
from halfbyte.publish.provenance import as_bytes, write_provenance
from halfbyte.publish.verify import verify


@pytest.fixture
def recorded(out, source):
    write_provenance(out, source)
    return out


def problems(out, **options):
    return {(found.problem, found.file) for found in verify(out, **options).differences}


def shard(out):
    return sorted(out.glob("*.safetensors"))[-1]


def edit(out, change):
    path = out / "halfbyte/provenance.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_an_untouched_folder_is_the_same(halfbyte, recorded, source):
    code, said, _ = halfbyte("verify", recorded, "--source", source)
    assert code == 0
    assert "✓ 20 of 20 files match provenance.json by size and SHA-256" in said, said
    assert "6 source shards match" in said
    assert "README.md" in said  # which is not covered yet


def test_a_download_needs_no_source_and_no_local_files(halfbyte, recorded, source, tmp_path):
    copy = tmp_path / "download"
    shutil.copytree(recorded, copy, copy_function=shutil.copyfile)  # with other times
    shutil.rmtree(source)
    (copy / "halfbyte/hashed.json").unlink()
    (copy / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (copy / ".cache/huggingface").mkdir(parents=True)
    (copy / ".cache/huggingface/x.metadata").write_text("x")
    assert halfbyte("verify", copy)[0] == 0


def test_a_snapshot_of_links_is_followed(recorded, tmp_path):
    """As the Hub's cache has it."""
    copy = tmp_path / "snapshot"
    shutil.copytree(recorded, copy)
    blob = tmp_path / "blob"
    shard(copy).rename(blob)
    (copy / shard(recorded).name).symlink_to(blob)
    assert problems(copy) == set()


def test_one_changed_bit_of_a_shard_with_its_old_time_is_seen(halfbyte, recorded):
    path, status = shard(recorded), shard(recorded).stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert problems(recorded) == {("changed", path.name)}
    assert problems(recorded, quick=True) == set()
    code, said, error = halfbyte("verify", recorded)
    assert code == 1
    assert f"✗ {path.name}: has changed: SHA-256 " in said
    assert "1 file differs from the record" in error


def test_sizes_missing_and_added_files(recorded):
    cut = shard(recorded)
    cut.write_bytes(b"short")
    (recorded / "tokenizer_config.json").unlink()
    (recorded / "model-extra.safetensors").write_bytes(b"more")
    (recorded / "halfbyte/compare.json").write_text("{}")
    (recorded / "halfbyte/plan.json").write_text("{}")
    expected = {
        ("changed", cut.name),
        ("missing", "tokenizer_config.json"),
        ("added", "model-extra.safetensors"),
        ("added", "halfbyte/compare.json"),
        ("changed", "halfbyte/plan.json"),
    }
    assert problems(recorded) == expected
    assert problems(recorded, quick=True) == expected - {("changed", "halfbyte/plan.json")}


def test_quick_says_that_it_is(halfbyte, recorded, monkeypatch):
    monkeypatch.setattr(hashing, "stamp", None)  # nothing is hashed
    code, said, _ = halfbyte("verify", recorded, "--quick")
    assert code == 0
    assert "only output sizes were compared" in said


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(plan="0" * 16),
        lambda record: record.update(license="mit"),
        lambda record: record["source"].update(note="reviewed"),
    ],
    ids=["another plan", "an unknown field", "an unknown field of the source"],
)
def test_an_edit_of_the_record_is_seen(recorded, change):
    edit(recorded, change)
    assert problems(recorded) == {("edited", "halfbyte/provenance.json")}


def test_another_layout_of_the_same_record_is_no_edit(recorded):
    edit(recorded, lambda record: None)
    assert problems(recorded) == set()


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../b", ""])
def test_a_hostile_record_reads_nothing_outside(recorded, name, monkeypatch):
    path = recorded / "halfbyte/provenance.json"
    record = json.loads(path.read_text())
    record["outputs"][name] = {"nbytes": 1, "sha256": "0" * 64}
    path.write_bytes(as_bytes(Provenance.of(record)))
    seen = []
    real = hashing.stamp
    monkeypatch.setattr(hashing, "stamp", lambda path, *rest: seen.append(Path(path)) or real(path, *rest))
    found = verify(recorded)
    assert [d.text for d in found.differences] == [f"names a file outside the folder: {name!r}"]
    assert all(path.resolve().is_relative_to(recorded.resolve()) for path in seen)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 2}', '{"format":1,"outputs":{"a":1},"evidence":{}}'])
def test_a_damaged_record_is_one_sentence(halfbyte, recorded, text):
    (recorded / "halfbyte/provenance.json").write_text(text)
    code, _, error = halfbyte("verify", recorded)
    assert code == 2
    assert "provenance.json" in error
    assert "Traceback" not in error


def test_no_record_is_one_sentence(halfbyte, out):
    code, _, error = halfbyte("verify", out)
    assert code == 2
    assert "halfbyte/provenance.json is missing" in error
    assert f"python -m halfbyte.release.write_provenance {out} SRC" in error


def test_a_folder_that_halfbyte_did_not_make_is_never_proposed_as_an_output(halfbyte, source):
    code, _, error = halfbyte("verify", source)
    assert code == 2
    assert f"not an output folder of halfbyte: halfbyte/provenance.json is missing\n  where {source}\n" in error
    assert "halfbyte quantize" not in error
    assert "halfbyte release" not in error
    assert "write_provenance" not in error


def test_a_changed_source_is_seen(recorded, source):
    path = shard(source)
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    (source / "model-00001-of-000006.safetensors").unlink()
    assert problems(recorded, source=source) == {
        ("changed", f"source/{path.name}"),
        ("missing", "source/model-00001-of-000006.safetensors"),
    }


def test_a_source_without_recorded_hashes_cannot_be_compared(recorded, source):
    path = recorded / "halfbyte/provenance.json"
    record = json.loads(path.read_text())
    name = shard(source).name
    record["source"]["shards"][name] = None
    path.write_bytes(as_bytes(Provenance.of(record)))
    assert problems(recorded) == set()
    assert problems(recorded, source=source) == {("changed", f"source/{name}")}


def test_a_changed_card_is_seen_before_it_is_published(halfbyte, recorded):
    write_card(recorded, force=True)
    assert problems(recorded) == set()
    card = recorded / "README.md"
    data = bytearray(card.read_bytes())
    data[len(data) // 2] ^= 1
    card.write_bytes(data)
    assert problems(recorded) == {("changed", "README.md")}
    code, said, error = halfbyte("verify", recorded)
    assert (code, "README.md: was changed after `halfbyte card` wrote it" in said) == (1, True)
    assert "python -m halfbyte.release.write_provenance" in error
    assert problems(recorded, quick=True) == set()
    (recorded / "halfbyte/card.json").unlink()  # then the origin is unknown
    assert problems(recorded) == set()


def test_hostile_names_of_a_record_change_no_terminal(halfbyte, recorded):
    path = recorded / "halfbyte/provenance.json"
    record = json.loads(path.read_text())
    record["outputs"]["a\x1b[31m\u202eb"] = {"nbytes": 1, "sha256": "0" * 64}
    path.write_bytes(as_bytes(Provenance.of(record)))
    code, said, error = halfbyte("verify", recorded)
    assert code == 1
    assert "is missing" in said
    assert not set("\x1b\u202e") & set(said + error)


def test_json_has_every_difference(halfbyte, recorded):
    (recorded / "config.json").write_text("{}")
    code, said, _ = halfbyte("--json", "verify", recorded)
    assert code == 1
    assert json.loads(said)["differences"][0]["file"] == "config.json"


def test_progress_has_rate_and_time_left():
    line = show_hashing.line("hashed", HashProgress(10**10, 6 * 10**11, 10.0))
    assert line == "hashed  10.0 GB of 600.0 GB  1.0 GB/s, 9 min 50 s left"


def test_lines_come_now_and_then(monkeypatch):
    said = []

    class Bar:
        def at(self, done, total):
            pass

        def step(self, line, done, total):
            said.append(line)

    show = show_hashing.watched(Bar(), "hashed")
    for second in range(60):
        show(HashProgress(second * 10**9, 60 * 10**9, float(second)))
    assert len(said) == 6


def test_hashing_reports_bytes_within_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(hashing, "_TICK_S", 0.001)
    path = tmp_path / "large"
    path.write_bytes(bytes(100 << 20))
    steps = []
    hashing.hash_files({"large": path}, watch=steps.append)
    assert {step.all_nbytes for step in steps} == {100 << 20}
    assert any(0 < step.done_nbytes < 100 << 20 for step in steps)
    assert steps[-1].finished == "large"
