"""Edited evidence removes its statements from a card, a report or a check, but never breaks them."""

import json

import pytest
from attacks.damage import damaged_json
from card_evidence import everything, pruned, put, write_out
from hypothesis import given
from hypothesis import strategies as st
from release_folder import QUICK_ENVIRONMENT, make_folder

from halfbyte.evidence.folder import KINDS
from halfbyte.publish import provenance
from halfbyte.publish.card.write import write_card
from halfbyte.publish.hub.run import prepare
from halfbyte.publish.provenance import write_provenance
from halfbyte.publish.report.page import write_report
from halfbyte.publish.verify import verify

EVIDENCE = {**everything(), **pruned()}
OF_AN_OUTPUT = ("plan.json", "audit.json", "release.json", "hashed.json", "sbom.cdx.json", "provenance.json")


def damaged_one(valid):
    """Return the name of one of these files, and damaged bytes for it."""
    return st.sampled_from(list(valid)).flatmap(lambda name: st.tuples(st.just(name), damaged_json(valid[name])))


@pytest.fixture(scope="module")
def measured(folder):
    """An output with evidence of every kind, in the form that the commands write."""
    return write_out(folder / "measured", EVIDENCE)


def test_card_and_report(survives, measured):
    put(measured, EVIDENCE)

    @given(found=damaged_one(EVIDENCE))
    def fuzz(found):
        kind, raw = found
        path = measured / "halfbyte" / KINDS[kind].file
        before = path.read_bytes()
        path.write_bytes(raw)
        survives(write_card, measured)
        survives(write_report, measured)
        path.write_bytes(before)

    fuzz()


@pytest.fixture(scope="module")
def published(folder):
    """An output that is ready to publish."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "environment", lambda: QUICK_ENVIRONMENT)
        source, out = make_folder(folder / "published")
        write_provenance(out, source)
        yield out


def prepared(out):
    return prepare(out, "maker/kimi-4bit", traces="maker/traces", force=True)


def test_verify_and_publish(survives, published):
    ours = published / "halfbyte"
    valid = {name: json.loads((ours / name).read_bytes()) for name in OF_AN_OUTPUT}
    before = {name: (ours / name).read_bytes() for name in OF_AN_OUTPUT}
    sent = []

    @given(found=damaged_one(valid), recorded=st.booleans())
    def fuzz(found, recorded):
        name, raw = found
        (ours / name).write_bytes(raw)
        if recorded:  # edited before it is recorded
            survives(write_provenance, published, None)
        survives(verify, published)
        ready = survives(prepared, published)
        sent.append(ready is not None and not ready.refused)
        for file, whole in before.items():
            (ours / file).write_bytes(whole)

    fuzz()
    assert True in sent  # damage that changes nothing that is judged goes all the way
    assert False in sent
