"""Evidence is tied to bytes: it survives a copy of the folder, but not a change with unchanged times."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from card_evidence import BENCH, COMPARE, PROBE, evaluation, put
from release_folder import make_folder, skip_probes

from halfbyte.checkpoint import hashing
from halfbyte.evidence.folder import read_evidence
from halfbyte.evidence.measured_files import MEASURED, measured_on
from halfbyte.publish.provenance import write_provenance
from halfbyte.serve.checkpoint_facts import audited

MEASUREMENTS = {"audit", "compare", "probe", "eval", "bench", "release", "provenance"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = make_folder(tmp_path_factory.mktemp("content"))
    put(out, {"compare": COMPARE, "probe": PROBE, "eval": evaluation(), "bench": BENCH})
    with pytest.MonkeyPatch.context() as patch:
        skip_probes(patch)
        write_provenance(out, source)
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """Return a copy with new times and inodes, like `cp -r`."""
    subprocess.run(["cp", "-r", str(made), str(tmp_path / "copy")], check=True)
    return tmp_path / "copy"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record every hashed file."""
    paths: list[Path] = []
    real = hashing.stamp
    monkeypatch.setattr(hashing, "stamp", lambda path, *rest: paths.append(path) or real(path, *rest))
    return paths


def flip(path: Path, at: int = -1) -> None:
    """Change one bit in place and restore the times of the file."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[at] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


def test_a_copy_keeps_all_evidence(out: Path) -> None:
    found = read_evidence(out)
    assert set(found.records) >= MEASUREMENTS, found.missing
    assert audited(out) == []


def test_a_copied_shard_is_hashed_once(out: Path, read: list[Path]) -> None:
    read_evidence(out)
    assert {path.name for path in read} >= {path.name for path in out.glob("*.safetensors")}
    read.clear()
    assert set(read_evidence(out).records) >= MEASUREMENTS
    assert read == []


def test_quantize_leaves_nothing_to_hash_but_small_files(made: Path, read: list[Path]) -> None:
    assert set(read_evidence(made).records) >= MEASUREMENTS
    assert not [path for path in read if path.suffix == ".safetensors"]


@pytest.mark.parametrize("name", ["model-00003-of-000004.safetensors", "config.json"])
def test_one_changed_bit_with_old_times_leaves_no_evidence(out: Path, name: str) -> None:
    path = out / name if (out / name).is_file() else sorted(out.glob("*.safetensors"))[0]
    read_evidence(out)  # all hashes are known now
    flip(path)
    found = read_evidence(out)
    assert not MEASUREMENTS & set(found.records)
    assert found.missing["eval"].why == f"measured on other files: {path.name} has changed since"
    assert audited(out) == [f"not audited since {path.name} changed: halfbyte audit {out}"]


def test_another_chat_template_changes_answers_and_no_weights(out: Path) -> None:
    (out / "chat_template.jinja").write_text("{{ messages }}")
    found = read_evidence(out)
    assert {"audit", "compare", "provenance"} <= set(found.records)
    assert not {"probe", "eval", "bench", "release"} & set(found.records)


def test_a_license_that_is_added_changes_nothing(out: Path) -> None:
    (out / "LICENSE.txt").write_text("terms")
    assert set(read_evidence(out).records) >= MEASUREMENTS


def test_a_result_that_names_no_files_is_no_evidence(out: Path) -> None:
    path = out / "halfbyte/eval/eval.json"
    held = json.loads(path.read_text())
    del held[MEASURED]
    path.write_text(json.dumps(held))
    assert read_evidence(out).missing["eval"].why == "it does not list the files it was measured on"


def test_a_cache_that_names_other_hashes_is_not_believed_after_a_copy(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "forged")  # with the times, and with the cache
    forged = tmp_path / "forged"
    flip(sorted(forged.glob("*.safetensors"))[0])
    assert not MEASUREMENTS & set(read_evidence(forged).records)


def test_results_of_a_server_name_the_files_of_the_folder_that_they_are_written_to(out: Path, tmp_path: Path) -> None:
    assert set(measured_on(out / "halfbyte/probe/probe.json")[MEASURED]) >= {"config.json"}
    assert measured_on(out / "halfbyte/eval-source/eval.json") == {}  # the source was asked
    assert measured_on(tmp_path / "probe/probe.json") == {}
