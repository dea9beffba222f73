"""The committed sets equal the generators' output, in standard columns, and do not overlap with training."""

import json
from types import SimpleNamespace

import pytest
from training import make_sets, mixture, overlap
from training.domains import programs, stories
from training.sample import Sample

FILES = make_sets.files()


def rows(path):
    return [json.loads(line) for line in FILES[path].splitlines()]


def test_what_is_on_disk_is_what_the_generators_give():
    assert make_sets.differences(FILES, make_sets.ROOT) == []


def test_differences_are_found(tmp_path):
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "a").write_bytes(b"1")
    (tmp_path / "evals" / "b").write_bytes(b"2")
    found = make_sets.differences({"evals/a": "x", "evals/c": "y"}, tmp_path)
    assert [line.split() for line in found] == [
        ["different", "evals/a"],
        ["missing", "evals/c"],
        ["too", "much", "evals/b"],
    ]


def test_sizes_and_numbers():
    assert sum(len(text.encode()) for text in FILES.values()) < 6_000_000
    for domain, count in make_sets.COUNTS.items():
        items = rows(f"evals/{domain}/test.jsonl")
        assert len(items) == count
        assert len({item["id"] for item in items}) == count


def test_columns_are_those_of_the_originals():
    problem, question = rows("evals/word_problems/test.jsonl")[0], rows("evals/world/test.jsonl")[0]
    assert set(problem) == {"id", "question", "answer"}
    assert int(problem["answer"].rpartition("#### ")[2]) >= 0
    assert set(question) == {"id", "question", "subject", "choices", "answer"}
    assert len(question["choices"]) == 4
    assert len({row["subject"] for row in rows("evals/world/test.jsonl")}) == 57
    assert set(rows("data/calibration/articles.jsonl")[0]) == {"article", "highlights", "id"}
    instructions = rows("data/calibration/instructions.jsonl")
    assert all({"messages", "domain", "thinking"} <= set(row) for row in instructions)
    assert {row["source"] for row in instructions} == set(mixture.modules())
    assert {row["thinking"] for row in instructions} == {True, False}


def test_the_first_choices_have_all_letters_and_many_subjects():
    """`--limit` takes the first items: a model that always answers A must not score well there."""
    first = rows("evals/world/test.jsonl")[:40]
    answers = [row["answer"] for row in first]
    assert all(answers.count(letter) >= 4 for letter in range(4))
    assert len({row["subject"] for row in first}) > 20


@pytest.fixture
def taught(monkeypatch):
    def teach(*modules):
        monkeypatch.setattr(mixture, "modules", lambda: {str(i): module for i, module in enumerate(modules)})

    return teach


def test_training_shares_no_thirteen_words_with_tests(taught):
    tests = {domain: make_sets.test_set(domain) for domain in ("stories", "programs")}
    taught(stories, programs)
    found, read = overlap.report(tests, 80_000)
    assert sum(read.values()) >= 80_000
    assert [(row.domain, row.shared_runs) for row in found] == [("stories", 0), ("programs", 0)]
    assert found[1].runs > 100


def test_a_copy_of_a_test_item_is_found(taught):
    items = make_sets.test_set("word_problems")[:50]
    copied = Sample("word_problems", text=f"Before it. {items[7].fields['question'].upper()} After it.")
    taught(SimpleNamespace(train_sample=lambda _: copied))
    (row,), _ = overlap.report({"word_problems": items}, 1000)
    assert row.touched_items == 1
    assert row.shared_runs >= 1


def test_boilerplate_does_not_count():
    item = make_sets.test_set("world")[0]
    (header,) = item.fields["boilerplate"]
    assert header in item.prompt
    assert all(header.strip() not in text for text in overlap.item_texts(item))
