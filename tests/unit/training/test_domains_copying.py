"""Copying: the answer follows from the question, and one wrong character is a wrong answer."""

import random
import re

import pytest
from training.domains import copying
from training.output import END
from training.sample import held_out

ITEMS = copying.test_items(240, seed=5)
ECHOES = [template.format("") for template in copying.ECHO]
REVERSAL = re.compile(r"(?:Reverse the word|Spell|Write) (\w+)(?: backwards| from right to left)?\.")
CASE = re.compile(r"(?:Write in upper case|Make this all capitals|Write in lower case|Capitalize every word): (.*)")


def by_form(form):
    return [item for item in ITEMS if item.fields["form"] == form]


def asked_of(item):
    return item.messages[0]["content"]


def what_must_be_new(question):
    """Return the form of a question, and the part that only the tests use."""
    for fixed in ECHOES:
        if question.startswith(fixed):
            return "echo or scripts", question.removeprefix(fixed)
    if question.startswith("| "):
        return "table", question.partition("\n\n")[0]
    if found := REVERSAL.fullmatch(question):
        return "reverse", found[1]
    if found := CASE.fullmatch(question):
        return "case", found[1].lower()
    return "list", re.sub("^Sort (.*): ", r"sort \1 ", question)


@pytest.mark.parametrize("form", copying.MIX)
def test_every_form_is_tested_and_its_answer_is_right(form):
    assert len(by_form(form)) == 40
    assert all(copying.score(item, item.answer + END) for item in by_form(form))


@pytest.mark.parametrize("form", ["echo", "scripts"])
def test_an_echo_is_the_end_of_its_question(form):
    for item in by_form(form):
        (fixed,) = item.fields["boilerplate"]
        assert item.messages[0]["content"] == fixed + item.answer


def test_a_reversal_spells_the_word_backwards():
    for item in by_form("reverse"):
        backwards = item.answer.rpartition(" ")[2]
        assert backwards[::-1] in item.messages[0]["content"].strip(".").split()


def test_sorted_lists_hold_the_same_things_in_order():
    lists = [item for item in by_form("list") if item.messages[0]["content"].startswith("Sort ")]
    assert len(lists) > 5
    for item in lists:
        order, given = item.messages[0]["content"].removeprefix("Sort ").split(": ")
        values = [int(part) if part.isdigit() else part for part in given.split(", ")]
        expected = sorted(values, reverse=order == "from large to small")
        assert item.answer == ", ".join(map(str, expected))


def tables():
    """Return each table's cells, its question and the answer; the question follows the table."""
    for item in by_form("table"):
        table, _, asked = asked_of(item).partition("\n\n")
        header, line, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines())
        assert line == ["---"] * len(header)
        yield table, [header, *rows], asked, item.answer


def test_a_cell_is_in_the_row_and_column_that_were_asked_for():
    asked_for = 0
    for _, (header, *rows), asked, answer in tables():
        if asked.startswith("What is the "):
            column, name = asked.removeprefix("What is the ").rstrip("?").split(" of ")
            assert [row[header.index(column)] for row in rows if row[0] == name] == [answer]
            asked_for += 1
    assert asked_for > 5


def test_a_table_is_copied_or_rewritten_with_all_its_cells():
    kinds = set()
    for table, (header, *rows), asked, answer in tables():
        column = asked.removeprefix("List the column ").rstrip(".")
        expected = {
            "Copy this table.": table,
            "Write this table as CSV.": "\n".join(",".join(row) for row in (header, *rows)),
            f"List the column {column}.": ", ".join(row[header.index(column)] for row in rows if column in header),
        }
        if not asked.startswith("What is the "):
            assert answer == expected[asked]
            kinds.add(asked.split()[0])
    assert kinds == {"Copy", "Write", "List"}


@pytest.mark.parametrize(
    ("right", "wrong"), [("توحيد", "توحید"), ("Check_Spark_192", "Check_SSpark_192"), ("a\u2011b", "a-b"), ("¥", "")]
)
def test_known_slips_of_damaged_models_are_wrong(right, wrong):
    item = copying.Item(copying.DOMAIN, "x", answer=right, fields={"form": "echo"})
    assert copying.score(item, right + END)
    assert not copying.score(item, wrong + END)


def test_thinking_is_not_the_answer():
    item = next(item for item in by_form("reverse") if item.thinking)
    assert copying.score(item, f"{item.answer} no</think>{item.answer}{END}")
    assert not copying.score(item, f"{item.answer}</think>wrong{END}")


def test_items_are_of_the_part_that_is_kept_for_tests():
    for item in ITEMS:
        form, key = what_must_be_new(asked_of(item))
        assert item.fields["form"] in form
        assert held_out(f"copying/{item.fields['form']}/{key}")


def test_training_never_shows_what_is_tested():
    rng = random.Random(9)
    shown = {what_must_be_new(copying.train_sample(rng).messages[0]["content"]) for _ in range(10_000)}
    assert not shown & {what_must_be_new(asked_of(item)) for item in ITEMS}
    known = [(form, key) for form, key in shown if form in copying.MIX]  # echo and scripts look alike
    assert {form for form, _ in known} == {"reverse", "case", "list", "table"}
    assert not any(held_out(f"copying/{form}/{key}") for form, key in known)
