"""Data sets: lazy reading, and one error for each kind of invalid data."""

import itertools
import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from halfbyte.calibrate import datasets as reader
from halfbyte.calibrate.chat import load_template
from halfbyte.calibrate.datasets import read_texts, replace_datasets
from halfbyte.errors import CheckpointError, HalfbyteError, MachineError, UsageError
from halfbyte.recipe.decisions import Calibrate, Dataset

DATA = Path(__file__).parents[3] / "data" / "calibration"
MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def dataset(source, **changes) -> Dataset:
    keys = {"domain": "news", "source": str(source), "chat_template": False, "share": 3, "columns": ("text",)}
    return Dataset(**{key: value for key, value in (keys | changes).items() if value is not None})


def jsonl(path: Path, *rows) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def texts(found) -> list[str]:
    return [text.text for text in found]


def refused(source, what: str, kind: type[HalfbyteError] = UsageError, **changes) -> HalfbyteError:
    with pytest.raises(kind, match=what) as caught:
        list(read_texts(dataset(source, **changes)))
    assert caught.value.fix
    return caught.value


@pytest.fixture
def template(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if tools %}{{ tools | length }}{% endif %}"
    )
    return load_template(tmp_path, {})


def test_every_format_gives_the_same_texts(tmp_path):
    lines = ["one", "two ü", "three"]
    (tmp_path / "a.txt").write_text("\n".join([*lines[:1], "", "  ", *lines[1:]]), encoding="utf-8")
    jsonl(tmp_path / "a.jsonl", *({"text": line, "other": 1} for line in lines), "")
    pq.write_table(pa.table({"other": [1, 2, 3], "text": lines}), tmp_path / "a.parquet")
    for name, columns in (("a.txt", None), ("a.jsonl", ("text",)), ("a.parquet", ("text",))):
        found = list(read_texts(dataset(tmp_path / name, columns=columns)))
        assert texts(found) == lines
        assert {(text.domain, text.from_template) for text in found} == {("news", False)}


def test_samples_are_read_lazily(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"}, "broken")
    assert texts(itertools.islice(read_texts(dataset(path)), 2)) == ["one", "two"]
    refused(path, "invalid JSON")


def test_only_requested_columns_of_a_table_are_decoded(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [str(at) for at in range(2000)], "other": [0] * 2000})
    pq.write_table(table, path, row_group_size=100)
    asked = []
    whole = pq.ParquetFile.iter_batches

    def watched(self, **how):
        for batch in whole(self, **how):
            asked.append((batch.num_rows, batch.schema.names))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    assert texts(itertools.islice(read_texts(dataset(path)), 5)) == ["0", "1", "2", "3", "4"]
    assert len(asked) == 1
    assert asked[0][0] <= 256
    assert asked[0][1] == ["text"]


def test_a_seed_shuffles_window_by_window(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "WINDOW", 5)
    path = jsonl(tmp_path / "a.jsonl", *({"text": str(at)} for at in range(12)))
    one = texts(read_texts(dataset(path), seed=1))
    assert [sorted(map(int, one[at : at + 5])) for at in (0, 5, 10)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert one == ["0", "3", "4", "2", "1", "9", "8", "5", "6", "7", "11", "10"]  # stable over versions
    assert one == texts(read_texts(dataset(path), seed=1))
    assert one != texts(read_texts(dataset(path), seed=2))


def test_samples_without_text_are_skipped(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"text": ""}, {"text": None}, {"text": "x"})
    assert texts(read_texts(dataset(path))) == ["x"]
    path = jsonl(tmp_path / "b.jsonl", {"a": None, "b": ""}, {"a": "", "b": "x"})
    assert texts(read_texts(dataset(path, columns=("a", "b")))) == ["\nx"]
    path = jsonl(tmp_path / "c.jsonl", {"text": []}, {"text": MESSAGES})
    assert texts(read_texts(dataset(path))) == ["Hello\nHi"]


def test_conversations_are_rendered_with_the_template(tmp_path, template):
    spoken = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]
    tools = json.dumps([{"name": "f"}, {"name": "g"}])
    rows = ({"c": MESSAGES}, {"c": spoken}, {"c": MESSAGES, "tools": tools}, {"c": MESSAGES, "tools": ""})
    path = jsonl(tmp_path / "a.jsonl", *rows)
    found = list(read_texts(dataset(path, columns=("c",), chat_template=True), template=template))
    assert texts(found) == ["[user]Hello[assistant]Hi" + end for end in ("", "", "2", "")]
    assert all(text.from_template for text in found)
    plain = list(read_texts(dataset(path, columns=("c",)), template=template))
    assert texts(plain) == ["Hello\nHi"] * 4
    assert not any(text.from_template for text in plain)


def test_tables_keep_conversations_and_tools(tmp_path, template):
    rows = {"messages": [MESSAGES, MESSAGES], "tools": ['[{"name": "f"}]', None], "other": [1, 2]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    how = dataset(tmp_path / "a.parquet", columns=("messages",), chat_template=True)
    assert texts(read_texts(how, template=template)) == ["[user]Hello[assistant]Hi1", "[user]Hello[assistant]Hi"]


def test_several_columns_are_turns_in_order(tmp_path, template):
    path = jsonl(tmp_path / "a.jsonl", {"q": "Why?", "a": "So.", "q2": "And?"})
    how = {"columns": ("q", "a", "q2")}
    assert texts(read_texts(dataset(path, **how))) == ["Why?\nSo.\nAnd?"]
    asked = read_texts(dataset(path, **how, chat_template=True), template=template)
    assert texts(asked) == ["[user]Why?[assistant]So.[user]And?"]


def test_a_domain_in_braces_is_a_column(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"text": "x", "kind": "code"}, {"text": "y", "kind": "math"})
    assert [text.domain for text in read_texts(dataset(path, domain="{kind}"))] == ["code", "math"]
    refused(path, "no column 'sort'; the columns are text, kind", domain="{sort}")
    path = jsonl(tmp_path / "b.jsonl", {"text": "x", "kind": 3})
    refused(path, "'kind' is a number, not a domain name", domain="{kind}")
    path = jsonl(tmp_path / "c.jsonl", {"text": "x", "kind": ""})
    said = refused(path, "'kind' is empty, not a domain name", domain="{kind}")
    assert said.where == f"{path}, line 1"
    assert said.fix == "set a domain in every sample, or pass one for all: --data news=file"
    pq.write_table(pa.table({"text": ["x"], "kind": ["code"]}), tmp_path / "a.parquet")
    assert [text.domain for text in read_texts(dataset(tmp_path / "a.parquet", domain="{kind}"))] == ["code"]


@pytest.mark.parametrize(
    ("row", "what", "changes"),
    [
        ('{"text": "x"', "invalid JSON", {}),
        (b'{"text": "\xff"}', "invalid JSON", {}),
        ("[" * 100_000, "invalid JSON", {}),
        ("[1]", "expected a JSON object, found a list", {}),
        ({"a": 1, "b": 2}, "no column 'text'; the columns are a, b", {}),
        ({}, "no column 'text'; the columns are empty", {}),
        ({"text": 7}, "'text' is a number, not a text or a list of messages", {}),
        ({"text": {"a": 1}}, "'text' is an object, not a text or a list of messages", {}),
        ({"text": ["a"]}, "'text' is a list with a text, not a list of messages", {}),
        ({"text": [{"content": "a"}]}, "a message in 'text' has no role; its keys are content", {}),
        ({"text": "a", "b": [1]}, "'b' is a list, not a text", {"columns": ("text", "b")}),
    ],
)
def test_invalid_samples_are_reported_with_their_position(tmp_path, row, what, changes):
    path = jsonl(tmp_path / "a.jsonl", {"text": "fine", "b": "fine"}, "")
    with path.open("ab") as file:
        file.write(row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode())
    assert refused(path, what, **changes).where == f"{path}, line 3"


def test_invalid_files_are_refused(tmp_path):
    refused(tmp_path / "a.jsonl", "file not found")
    for name in ("a.jsonl", "a.txt"):
        (tmp_path / name).write_text("\n \n")
        refused(tmp_path / name, "the file is empty", columns=("text",) if name == "a.jsonl" else None)
    (tmp_path / "b.txt").write_bytes(b"fine\nna\xefve\n")
    assert refused(tmp_path / "b.txt", "invalid UTF-8", columns=None).where.endswith("b.txt, line 2")
    (tmp_path / "a.parquet").write_text("text")
    refused(tmp_path / "a.parquet", "not a valid Parquet file")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "b.parquet")
    refused(tmp_path / "b.parquet", "the file is empty")
    pq.write_table(pa.table({"a": ["x"], "b": ["x"]}), tmp_path / "c.parquet")
    refused(tmp_path / "c.parquet", "no column 'text'; the columns are a, b")
    (tmp_path / "a.csv").write_text("text\n")
    refused(tmp_path / "a.csv", "unsupported file type; supported are .jsonl, .parquet, .txt", split="train")


def test_a_template_needs_messages_and_a_checkpoint_that_has_one(tmp_path, template):
    path = jsonl(tmp_path / "a.jsonl", {"text": "x"})
    refused(path, "this checkpoint has no chat template", CheckpointError, chat_template=True)
    with pytest.raises(UsageError, match="a chat template requires messages, found plain text"):
        list(read_texts(dataset(path, chat_template=True), template=template))
    path = jsonl(tmp_path / "a.jsonl", {"text": MESSAGES, "tools": "{"})
    with pytest.raises(UsageError, match="'tools' is not valid JSON"):
        list(read_texts(dataset(path, chat_template=True), template=template))


class DatasetNotFoundError(Exception):
    """As the library calls it."""


@pytest.fixture
def hub(monkeypatch):
    """Replace `datasets` by a library that returns rows or raises."""

    def stand(answer):
        calls = []

        def load_dataset(path, **how):
            calls.append((path, how))
            for row in answer:
                if isinstance(row, Exception):
                    raise row
                yield row

        monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
        return calls

    return stand


def test_the_hub_is_streamed(hub):
    calls = hub([{"text": "one"}, {"text": "two"}, AssertionError("read too far")])
    how = dataset("abisee/cnn_dailymail", subset="3.0.0", split="train")
    assert texts(itertools.islice(read_texts(how), 2)) == ["one", "two"]
    assert calls == [("abisee/cnn_dailymail", {"name": "3.0.0", "split": "train", "streaming": True})]


@pytest.mark.parametrize(
    ("error", "kind", "what", "fix"),
    [
        (
            ConnectionError("Couldn't reach it\nmore"),
            MachineError,
            "cannot be reached: Couldn't reach it",
            "news=path",
        ),
        (TimeoutError(), MachineError, "the Hub cannot be reached: TimeoutError", "connect this machine"),
        (DatasetNotFoundError("gated"), UsageError, "not found on the Hub: gated", "accept its terms"),
        (ValueError("Unknown split"), UsageError, "cannot load the dataset: Unknown split", "check subset and split"),
    ],
)
def test_hub_errors_of_datasets_are_reported(hub, error, kind, what, fix):
    hub([error])
    caught = refused("a/b", what, kind, split="train")
    assert fix in caught.fix
    assert caught.where == "dataset 'a/b', split 'train'"
    assert "more" not in caught.what


@pytest.mark.parametrize(("module", "source"), [("datasets", "a/b"), ("pyarrow.parquet", "a.parquet")])
def test_a_missing_library_is_named(monkeypatch, tmp_path, module, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, module, None)
    split = None if source.endswith("parquet") else "train"
    error = refused(source, "is not installed", MachineError, split=split)
    assert error.fix.startswith(f"pip install {module.partition('.')[0]}")


@pytest.fixture
def recipe() -> Calibrate:
    news = {"domain": "news", "source": "a/b", "split": "train", "columns": ["highlights"], "share": 5}
    code = {"domain": "code", "source": "a/c", "split": "train", "columns": ["messages"], "share": 2}
    sets = [news | {"chat_template": False}, code | {"chat_template": True}]
    keys = {"samples": 7, "sequence_length": 16, "rows": "padded", "seed": 4, "propagate": "unquantized"}
    return Calibrate.of(keys | {"datasets": sets})


def test_local_files_replace_datasets(recipe):
    articles, instructions = DATA / "articles.jsonl", DATA / "instructions.jsonl"
    pairs = [f"news={articles}", f"other={articles}", f"{{domain}}={instructions}", f"id={articles}:id,article"]
    changed = replace_datasets(recipe, pairs)
    expected = [
        ("news", ("highlights",), False, 2),  # the recipe's columns for this domain
        ("other", ("article",), False, 2),
        ("{domain}", ("messages",), True, 2),
        ("id", ("id", "article"), True, 1),
    ]
    assert [(d.domain, d.columns, d.chat_template, d.share) for d in changed.datasets] == expected
    assert (changed.samples, changed.seed, changed.sequence_length, changed.rows) == (7, 4, 16, "padded")
    assert replace_datasets(recipe, pairs[:1], samples=9).datasets[0].share == 9
    plain = replace(recipe, datasets=recipe.datasets[:1])
    assert replace_datasets(plain, pairs[2:3]).datasets[0].chat_template is False  # as the recipe does it


def test_local_files_of_other_kinds(recipe, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a:b.parquet")
    changed = replace_datasets(recipe, [f"a={tmp_path / 'a.txt'}", f"b={tmp_path / 'a:b.parquet'}"])
    assert [(d.columns, d.chat_template, d.share) for d in changed.datasets] == [
        (None, False, 4),
        (("text",), False, 3),
    ]


def test_a_file_without_a_domain_is_named_after_its_stem(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "my-texts.jsonl", {"text": "a", "body": "b"})
    changed = replace_datasets(recipe, ["my-texts.jsonl", "./my-texts.jsonl:body"])
    found = [(d.domain, d.source, d.columns) for d in changed.datasets]
    assert found == [("my-texts", "my-texts.jsonl", ("text",)), ("my-texts", "./my-texts.jsonl", ("body",))]


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"id": "1", "question": "q", "answer": "a"}, ("question", "answer")),
        ({"prompt": "q", "response": "a"}, ("prompt", "response")),
        ({"instruction": "q", "input": "", "output": "a"}, ("instruction", "output")),
        ({"text": "t", "question": "q", "answer": "a"}, ("text",)),
    ],
)
def test_questions_with_answers_are_conversations(recipe, tmp_path, row, columns):
    jsonl(tmp_path / "f.jsonl", row)
    (found,) = replace_datasets(recipe, [f"x={tmp_path / 'f.jsonl'}"]).datasets
    assert (found.columns, found.chat_template) == (columns, len(columns) > 1)


def test_a_column_that_is_not_known_is_answered_with_the_right_spelling(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "f.jsonl", {"id": "1", "n": 5, "body": "a longer text"})
    with pytest.raises(UsageError) as caught:
        replace_datasets(recipe, ["x=f.jsonl"])
    assert caught.value.fix == "name the column, as in x=f.jsonl:body"


@pytest.mark.parametrize(
    ("pairs", "what"),
    [
        ([], "no data specified"),
        (["articles"], "'articles' is not a DOMAIN=FILE pair"),
        (["=articles.jsonl"], "is not a DOMAIN=FILE pair"),
        (["news="], "is not a DOMAIN=FILE pair"),
        (["{}=odd.jsonl:x"], "'{}=odd.jsonl:x' has no column name between its braces"),
        (["news=a.csv"], "unsupported file type 'a.csv'"),
        (["news=missing.jsonl"], "file not found"),
        (["news=missing.jsonl:a"], "file not found"),
        (["news=odd.jsonl"], "cannot infer the text column from x, y"),
        (["news=odd.jsonl:z"] * 8, "7 samples cannot be split over 8 files"),
    ],
)
def test_invalid_data_pairs_are_refused(recipe, tmp_path, monkeypatch, pairs, what):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "odd.jsonl", {"x": "a", "y": "b"})
    with pytest.raises(UsageError, match=what) as caught:
        replace_datasets(recipe, pairs)
    assert caught.value.fix
