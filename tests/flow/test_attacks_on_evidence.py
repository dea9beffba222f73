"""Arbitrary files in place of evidence, card or record: every reader stops quickly, in little memory, with a
message.
"""

import shutil

import pytest
from attacks.bounds import run_bounded
from attacks.files import CHANGED, FILES
from card_evidence import everything, pruned, write_out
from release_folder import RECIPE, copy_folder, make_folder, skip_probes
from report_evidence import QUIET, add_evidence, write_output

from halfbyte.evidence.folder import KINDS as RECORDS
from halfbyte.publish.provenance import write_provenance

EVIDENCE = {**everything(), **pruned()}
KINDS = tuple(EVIDENCE)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return write_out(tmp_path_factory.mktemp("measured"), EVIDENCE)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("released"))


@pytest.mark.parametrize("attack", FILES)
def test_card_and_report(halfbyte, measured, tmp_path, attack):
    """Each attack is applied to two kinds of evidence, so that every kind gets several."""
    number = list(FILES).index(attack)
    for kind in (KINDS[number % len(KINDS)], KINDS[(5 * number + 3) % len(KINDS)]):
        out = tmp_path / "out"
        shutil.copytree(measured, out)
        FILES[attack](out / "halfbyte" / RECORDS[kind].file)
        for command in ("card", "report"):
            code, _, said = run_bounded(halfbyte, command, out)
            assert code == 0 or kind == "plan", said
        shutil.rmtree(out)


OF_A_RELEASE = ("provenance.json", "audit.json", "release.json", "hashed.json", "plan.json", "sbom.cdx.json")


@pytest.mark.parametrize("attack", FILES)
def test_verify_and_publish(halfbyte, released, tmp_path, monkeypatch, attack):
    skip_probes(monkeypatch)
    number = list(FILES).index(attack)
    for name in {"provenance.json", OF_A_RELEASE[1 + number % (len(OF_A_RELEASE) - 1)]}:
        source, out = copy_folder(released, tmp_path)
        write_provenance(out, source)
        FILES[attack](out / "halfbyte" / name)
        for words in (("verify", out), ("publish", out, "maker/model", "--dry-run"), ("status", out)):
            code, _, _ = run_bounded(halfbyte, *words)
            assert code in (0, 1, 2)
        shutil.rmtree(source)
        shutil.rmtree(out)


@pytest.mark.parametrize("name", ["README.md", "halfbyte/source-README.md"])
@pytest.mark.parametrize("attack", ["fifo", "endless_device", "folder", "sparse_terabyte", "sparse_behind_its_end"])
def test_texts_that_are_no_texts(halfbyte, measured, tmp_path, name, attack):
    out = tmp_path / "out"
    shutil.copytree(measured, out)
    path = out / name
    if not path.exists():
        path.write_text("---\nlicense: other\n---\n")
    FILES[attack](path)
    for command in ("card", "report"):
        run_bounded(halfbyte, command, out)


@pytest.mark.parametrize("attack", ["fifo", "endless_device", "folder", "sparse_terabyte"])
def test_a_trace_that_is_none(halfbyte, tmp_path, attack):
    out = write_output(tmp_path)
    add_evidence(out, layers=2, experts=8)
    assert halfbyte("report", out)[0] == 0
    assert QUIET in (out / "halfbyte/report.html").read_text()
    FILES[attack](out / "halfbyte/probe/probe.jsonl")
    assert run_bounded(halfbyte, "report", out)[0] == 0


@pytest.mark.parametrize("attack", FILES)
def test_going_on_in_a_folder(halfbyte, released, tmp_path, attack):
    """A resumed run reads the files of the previous one; with an invalid journal, shards are written again."""
    for name in ("plan.json", *(("journal.jsonl",) if attack not in CHANGED else ())):
        source, out = copy_folder(released, tmp_path)
        FILES[attack](out / "halfbyte" / name)
        code, _, said = run_bounded(halfbyte, "quantize", source, out, "-r", RECIPE)
        assert code == 2 or name == "journal.jsonl" or attack in ("no_permission", "doubled_keys"), said
        shutil.rmtree(source)
        shutil.rmtree(out)
