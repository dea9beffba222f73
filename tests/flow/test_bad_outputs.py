"""Where the output would go, and a recipe of another family: refused before the first byte."""

import shutil

import pytest
from refusals import RECIPE, refused

from halfbyte.errors import EXIT_MACHINE
from halfbyte.recipe.load import recipe_text


def test_an_output_folder_inside_the_source(halfbyte, bad_source):
    for out in (
        bad_source,
        bad_source / "out",
        bad_source / "a" / "b",
        bad_source.parent / "x" / ".." / bad_source.name / "out",
    ):
        what, where, fix = refused(halfbyte, bad_source, out)
        assert (what, where, fix) == (
            "the output folder lies inside the source",
            str(out),
            "give a folder elsewhere",
        )


def test_an_output_folder_that_holds_something(halfbyte, bad_source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    assert refused(halfbyte, bad_source, tmp_path / "out")[0] == "the output folder is not empty"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("below", ["", "out", "a/b"])
def test_an_output_folder_where_a_file_is(halfbyte, bad_source, tmp_path, below):
    (tmp_path / "file").write_text("mine")
    what, where, _ = refused(halfbyte, bad_source, tmp_path / "file" / below)
    assert (what, where) == ("the output lies where a file is", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_recipe_for_another_family(halfbyte, bad_source, tmp_path):
    mine = tmp_path / "text-only.yaml"
    lines = [
        line for line in recipe_text(RECIPE).splitlines() if not line.strip().startswith(("vision:", "projector:"))
    ]
    mine.write_text("\n".join(lines))
    what, where, fix = refused(halfbyte, bad_source, tmp_path / "out", recipe=str(mine))
    assert what.startswith("recipe 'kimi-k2.6-mxfp4-wafer' does not say what happens to ")
    assert where.startswith(("vision_tower.", "mm_projector."))
    assert "this recipe is for another family" in fix
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_too_small(halfbyte, bad_source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    what, where, fix = refused(halfbyte, bad_source, tmp_path / "out", code=EXIT_MACHINE)
    assert what.startswith("the output needs 0.3 GB, the disk has 0.0 GB free")
    assert where == str(tmp_path / "out")
    assert fix.startswith("free some space")
    assert not (tmp_path / "out").exists()
