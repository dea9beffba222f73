"""More checks that block publishing: copied evidence, and untrusted names."""

import json

import pytest

from halfbyte.publish.provenance import write_provenance

REPO = "someone/kimi-4bit"


def refused(halfbyte, hub, out, *options):
    code, said, error = halfbyte("publish", out, REPO, *options)
    assert (code, hub.requests) == (1, []), said + error
    return said


@pytest.mark.parametrize(
    ("plan", "said"),
    [("0" * 16, "it belongs to another plan, 0000000000000000"), (None, "the verdict is for another plan")],
)
def test_a_verdict_of_another_checkpoint(halfbyte, hub, ready, source, plan, said):
    path = ready / "halfbyte/release.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "plan": plan}))
    write_provenance(ready, source)
    assert said in refused(halfbyte, hub, ready)


def test_a_link_to_a_folder_inside(halfbyte, hub, ready):
    (ready / "again").symlink_to(ready / "halfbyte")
    assert "again is a symlink to a folder" in refused(halfbyte, hub, ready)


def test_hostile_names_of_files_change_no_terminal(halfbyte, hub, ready):
    (ready / "a\x1b[31m\u202eb.txt").write_text("x")
    said = refused(halfbyte, hub, ready)
    assert "has unprintable characters in its name" in said
    assert not set("\x1b\u202e") & set(said)
