"""Strict YAML: strings stay strings, and files that are not recipes get a clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfbyte.errors import RecipeError
from halfbyte.recipe.load import MAX_NBYTES, load_recipe

WHOLE = (Path(__file__).parent / "whole.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("word", ["no", "on", "2024-01-01", "0x1F", "1_000", "010", "12:30:45", ".inf", "=", "0.41.0"])
def test_words_that_look_like_something_else_stay_words(word: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(WHOLE.replace("All that a recipe can say.", word), encoding="utf-8")
    assert load_recipe(path).description == word


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ("expected a block of keys, found an empty file", "F", "start from 'halfbyte recipes show NAME'")),
        (
            b"- a\n",
            (
                "expected a block of keys, found a single value or a list",
                "F",
                "start from 'halfbyte recipes show NAME'",
            ),
        ),
        (
            b"a: 1\n---\nb: 2\n",
            (
                "invalid YAML: expected a single document in the stream; but found another document",
                "F:2",
                "check indentation (spaces, not tabs), colons and quotes on that line and the one before",
            ),
        ),
        (
            b"a: 1\nb:\n\tc: 1\n",
            (
                "invalid YAML: while scanning for the next token; found character '\\t' that cannot start any token",
                "F:3",
                "check indentation (spaces, not tabs), colons and quotes on that line and the one before",
            ),
        ),
        (b"a: 1\nb: \x07\n", ("invalid character U+0007 in a recipe", "F:2", "remove it: a recipe is plain text")),
        (b"\x93NUMPY\x00", ("'r.yaml' is not text: not a recipe", "F", "pass a recipe, a YAML file in UTF-8")),
        (
            b"#" * (MAX_NBYTES + 1),
            (
                "'r.yaml' is larger than 100 kB: not a recipe",
                "F",
                "pass a recipe, a YAML file of a few kB; checkpoints are passed as SRC",
            ),
        ),
        (
            b"#" * MAX_NBYTES,
            ("expected a block of keys, found an empty file", "F", "start from 'halfbyte recipes show NAME'"),
        ),
        (b"a: 1\nb: " + b"[" * 90_000, ("blocks nested more than 8 deep", "F:2", "check the brackets")),
        (b"n: " + b"9" * 5000, ("number with 5000 digits", "F:1: n", "write a shorter number")),
    ],
    ids=[
        "empty",
        "list",
        "two documents",
        "tab",
        "bell",
        "binary",
        "too large",
        "just not too large",
        "deep",
        "long number",
    ],
)
def test_files_that_are_not_recipes_are_refused(content: bytes, said: tuple[str, str, str], tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    error = caught.value
    assert (error.what, error.where.replace(str(path), "F"), error.fix) == said


def test_eight_levels_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("shards: " + "[" * 7 + "]" * 7, encoding="utf-8")
    with pytest.raises(RecipeError, match="'shards' must be text, not a list"):
        load_recipe(path)


def test_a_file_may_have_any_name_and_a_byte_order_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("\ufeff" + WHOLE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("mine").name == load_recipe(Path("mine")).name == "whole"
