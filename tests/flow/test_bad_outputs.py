"""Invalid output folders, and recipes of another family: rejected before anything is written."""

import shutil

import pytest
from refusals import RECIPE, everything, refused

from halfbyte.errors import EXIT_MACHINE
from halfbyte.recipe.load import recipe_text

INSIDE, SAME = "the output folder is inside the source", "the output folder is the source"


def test_an_output_folder_inside_the_source(halfbyte, bad_source):
    for out, said in (
        (bad_source, SAME),
        (bad_source / "out", INSIDE),
        (bad_source / "a" / "b", INSIDE),
        (bad_source.parent / "x" / ".." / bad_source.name, SAME),
        (bad_source.parent / "x" / ".." / bad_source.name / "out", INSIDE),
    ):
        what, where, fix = refused(halfbyte, bad_source, out)
        assert (what, where, fix) == (
            said,
            str(out),
            f"pass a folder outside the source, such as {bad_source.parent / 'source-out'}",
        )


def test_an_output_folder_that_is_the_source_by_another_name(halfbyte, bad_source, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(bad_source)
    (bad_source.parent / "elsewhere").mkdir()
    (bad_source.parent / "elsewhere" / "deep").symlink_to(bad_source / "figures")
    for source, out, said in (
        (bad_source, tmp_path / "link", SAME),
        (tmp_path / "link", bad_source, SAME),
        (tmp_path / "link", tmp_path / "link" / "out", INSIDE),
        (bad_source, tmp_path / "elsewhere" / "deep" / "out", INSIDE),
    ):
        assert refused(halfbyte, source, out)[0] == said
    monkeypatch.chdir(bad_source)
    assert refused(halfbyte, bad_source, ".")[0] == SAME
    assert refused(halfbyte, bad_source, "out")[0] == INSIDE
    assert refused(halfbyte, bad_source, "../source/./out")[0] == INSIDE


def test_every_command_that_writes_refuses_the_source(halfbyte, bad_source, tmp_path):
    (tmp_path / "link").symlink_to(bad_source)
    (tmp_path / "texts.jsonl").write_text('{"text": "half a byte"}\n')
    before = everything(bad_source)
    calibrates = ("-r", "kimi-k2.6-nvfp4-nvidia", "--data", f"web={tmp_path / 'texts.jsonl'}")
    for out, said in ((bad_source, SAME), (tmp_path / "link", SAME), (tmp_path / "link" / "new", INSIDE)):
        for words in (
            ("prune", bad_source, out, "--keep", "2", "--data", f"web={tmp_path / 'texts.jsonl'}"),
            ("release", bad_source, out, *calibrates),
            ("release", bad_source, out, *calibrates, "--dry-run"),
            ("calibrate", bad_source, "-o", out, *calibrates),
            ("plan", bad_source, "-r", RECIPE, "--no-measure", "-o", out / "config.json"),
        ):
            code, _, error = halfbyte(*words)
            expected = INSIDE if words[0] == "plan" else said
            assert (code, expected in error) == (2, True), (words, error)
    assert everything(bad_source) == before


def test_an_output_folder_that_holds_something(halfbyte, bad_source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    assert refused(halfbyte, bad_source, tmp_path / "out")[0] == "the output folder is not empty"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("below", ["", "out", "a/b"])
def test_an_output_folder_where_a_file_is(halfbyte, bad_source, tmp_path, below):
    (tmp_path / "file").write_text("mine")
    what, where, _ = refused(halfbyte, bad_source, tmp_path / "file" / below)
    assert (what, where) == ("a file exists at the output path", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_recipe_for_another_family(halfbyte, bad_source, tmp_path):
    mine = tmp_path / "text-only.yaml"
    lines = [
        line for line in recipe_text(RECIPE).splitlines() if not line.strip().startswith(("vision:", "projector:"))
    ]
    mine.write_text("\n".join(lines))
    what, where, fix = refused(halfbyte, bad_source, tmp_path / "out", recipe=str(mine))
    assert what.startswith("recipe 'kimi-k2.6-mxfp4-wafer' has no action for ")
    assert where.startswith(("vision_tower.", "mm_projector."))
    assert "this recipe is for another family" in fix
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_too_small(halfbyte, bad_source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    what, where, fix = refused(halfbyte, bad_source, tmp_path / "out", code=EXIT_MACHINE)
    assert what.startswith("the output needs 268.8 MB, the disk has 1.0 kB free")
    assert where == str(tmp_path / "out")
    assert fix.startswith("free some space")
    assert not (tmp_path / "out").exists()
