"""Token rows: ModelOpt's padded ones bit for bit, and packed ones without loss, mixing or repetition."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfbyte.calibrate.chat import load_template
from halfbyte.calibrate.token_rows import (
    Document,
    Share,
    make_rows,
    packed_rows,
    padded_rows,
)
from halfbyte.calibrate.tokenizer import Vocabulary, load_vocabulary
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.recipe.decisions import Calibrate

REPOSITORY = Path(__file__).parents[3]
MINI = REPOSITORY / "models" / "kimi-mini"
ARTICLES = REPOSITORY / "data/calibration/articles.jsonl"
INSTRUCTIONS = REPOSITORY / "data/calibration/instructions.jsonl"
PAD = 99
IDS = st.lists(st.integers(0, 90), min_size=1, max_size=12)


def recipe(*sets, rows="padded", length=64, seed=None) -> Calibrate:
    """Return a calibration of (domain, source, column, chat_template, share)."""
    keys = ("domain", "source", "columns", "chat_template", "share")
    datasets = [dict(zip(keys, (d, str(s), (c,), t, n), strict=True)) for d, s, c, t, n in sets]
    samples = sum(dataset["share"] for dataset in datasets)
    how = {"samples": samples, "sequence_length": length, "rows": rows, "seed": seed, "propagate": "unquantized"}
    return Calibrate.of(how | {"datasets": datasets})


def shares_of(groups: list[list[list[int]]]) -> list[Share]:
    """Return one domain per group of documents, with one row per document."""
    return [Share("x", [Document(ids, f"d{at}") for ids in group], len(group)) for at, group in enumerate(groups)]


@pytest.fixture(scope="module")
def mini():
    vocabulary = load_vocabulary(MINI)
    return vocabulary, load_template(MINI, vocabulary.named)


@pytest.mark.parametrize("length", [64, 512])
def test_padded_rows_are_those_of_modelopt(mini, length):
    """The one call of its get_dataset_dataloader, on texts with special tokens among them."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(MINI, padding_side="left")
    articles = [json.loads(line)["article"] for line in ARTICLES.open()][:40]
    turns = [json.loads(line)["messages"] for line in INSTRUCTIONS.open()][:40]
    texts = articles + ["\n".join(turn["content"] for turn in turn) for turn in turns]
    wanted = theirs(texts, return_tensors="np", padding=True, truncation=True, max_length=length)
    rows = make_rows(
        recipe(("news", ARTICLES, "article", False, 40), ("chat", INSTRUCTIONS, "messages", False, 40), length=length),
        *mini,
    )
    assert np.array_equal(rows.tokens, wanted["input_ids"])
    assert np.array_equal(rows.real, wanted["attention_mask"])
    assert rows.left_padded
    assert rows.names == ("news", "chat")
    assert np.array_equal(rows.positions, np.tile(np.arange(rows.tokens.shape[1]), (80, 1)))


def test_padded_rows_with_a_frame_are_cut_inside_it(tmp_path, mini):
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    framed = Tokenizer.from_file(str(MINI / "tokenizer.json"))
    framed.post_processor = processors.TemplateProcessing(
        "[BOS] $A [EOS]", special_tokens=[("[BOS]", 3008), ("[EOS]", 3009)]
    )
    framed.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text((MINI / "tokenizer_config.json").read_text())
    theirs = PreTrainedTokenizerFast(tokenizer_object=framed, padding_side="left", pad_token="[PAD]")
    texts = ["one two three four five six seven eight", "a<think>b", "short"]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    how = {"samples": 3, "sequence_length": 6, "rows": "padded", "seed": None, "propagate": "unquantized"}
    one = {"domain": "d", "source": str(tmp_path / "a.txt"), "chat_template": False, "share": 3}
    rows = make_rows(Calibrate.of(how | {"datasets": [one]}), load_vocabulary(tmp_path), None)
    wanted = theirs(texts, return_tensors="np", padding=True, truncation=True, max_length=6)
    assert np.array_equal(rows.tokens, wanted["input_ids"])
    assert np.array_equal(rows.real, wanted["attention_mask"])


@given(groups=st.lists(st.lists(IDS, min_size=1, max_size=4), min_size=1, max_size=3), length=st.integers(1, 12))
def test_padded_rows_keep_every_token_that_fits(groups, length):
    rows = padded_rows(shares_of(groups), length, PAD)
    documents = [(ids[:length], at) for at, group in enumerate(groups) for ids in group]
    width = max(len(ids) for ids, _ in documents)
    assert rows.tokens.shape == (len(documents), width)
    for row, (ids, domain) in enumerate(documents):
        assert rows.tokens[row].tolist() == [PAD] * (width - len(ids)) + ids
        assert rows.real[row].tolist() == [False] * (width - len(ids)) + [True] * len(ids)
        assert set(rows.documents[row][rows.real[row]]) == {row}
        assert set(rows.domains[row][rows.real[row]]) == {domain}
    assert (rows.documents[~rows.real] == -1).all()
    assert (rows.domains[~rows.real] == -1).all()


@given(groups=st.lists(st.lists(IDS, min_size=1, max_size=6), min_size=1, max_size=3), length=st.integers(1, 9))
def test_packed_rows_have_every_token_once_in_order_and_never_mix(groups, length):
    counts = [-(-sum(map(len, group)) // length) for group in groups]  # rows that hold all of a group
    shares = [dataclasses.replace(share, rows=n) for share, n in zip(shares_of(groups), counts, strict=True)]
    rows = packed_rows(shares, length, PAD)
    assert rows.tokens.shape == (sum(counts), length)
    assert not rows.left_padded
    assert rows.tokens[rows.real].tolist() == [id for group in groups for ids in group for id in ids]
    assert (rows.tokens[~rows.real] == PAD).all()
    # One number for each document, in order, with all its tokens, in its own domain.
    flat, numbers = [(ids, at) for at, group in enumerate(groups) for ids in group], rows.documents
    for number, (ids, domain) in enumerate(flat):
        assert rows.tokens[numbers == number].tolist() == ids
        assert set(rows.domains[numbers == number]) == {domain}
    assert set(numbers[rows.real]) == set(range(len(flat)))
    assert set(numbers[~rows.real]) <= {-1}
    # Positions count from 0 in each row and document.
    for row in range(len(rows.tokens)):
        for number in set(numbers[row]):
            seen = rows.positions[row][numbers[row] == number]
            assert seen.tolist() == list(range(len(seen)))
    # Padding only at the end of a share.
    ends = np.cumsum(counts) - 1
    for row, real in enumerate(rows.real):
        assert real.all() or (row in ends and (np.diff(real.astype(int)) <= 0).all() and real[0])


def test_packed_rows_take_no_more_than_their_share():
    def endless():
        while True:
            yield Document([1, 2, 3], "a")

    rows = packed_rows([Share("x", endless(), 2), Share("y", [Document([7] * 9, "b")], 1)], 4, PAD)
    assert rows.tokens.tolist() == [[1, 2, 3, 1], [2, 3, 1, 2], [7, 7, 7, 7]]
    assert rows.positions.tolist() == [[0, 1, 2, 0], [0, 1, 0, 1], [0, 1, 2, 3]]
    assert rows.tokens_of_domains() == {"a": 8, "b": 4}


def test_too_few_samples_or_rows_are_refused():
    with pytest.raises(UsageError, match="only 1 of 2 samples available") as caught:
        padded_rows([Share("news.jsonl", [Document([1], "a")], 2)], 4, PAD)
    assert caught.value.fix == "add more data, or request 1 samples"
    assert caught.value.where == "data 'news.jsonl'"
    with pytest.raises(UsageError, match="only 2 of 3 rows available") as caught:
        packed_rows([Share("x", [Document([1] * 5, "a")], 3)], 4, PAD)
    with pytest.raises(UsageError, match="only 0 of 3 rows available"):
        packed_rows([Share("x", [], 3)], 4, PAD)


def test_plain_text_spells_special_tokens_only_where_modelopt_lets_it(tmp_path, mini):
    (tmp_path / "a.jsonl").write_text(json.dumps({"c": [{"role": "user", "content": "<|im_end|>" * 9}]}) + "\n")
    ends = {}
    for rows in ("padded", "packed"):
        for chat in (False, True):
            made = make_rows(recipe(("x", tmp_path / "a.jsonl", "c", chat, 1), rows=rows), *mini)
            ends[rows, chat] = int((made.tokens == mini[0].special["<|im_end|>"]).sum())
    assert ends == {("padded", False): 9, ("packed", False): 0, ("padded", True): 10, ("packed", True): 10}


def test_domains_of_samples_are_counted(mini):
    rows = make_rows(recipe(("{domain}", INSTRUCTIONS, "messages", True, 200), length=1024), *mini)
    found = [json.loads(line)["domain"] for line in INSTRUCTIONS.open()][:200]
    assert set(rows.names) == {"math", "code", "stem", "tool_calling", "chat"}
    assert [rows.names[domain] for domain in rows.domains[:, -1]] == found
    assert sum(rows.tokens_of_domains().values()) == rows.real.sum()


def test_rows_are_the_same_every_time_and_a_seed_changes_them(mini):
    def fingerprint(**how):
        return make_rows(recipe(("news", ARTICLES, "article", False, 20), **how), *mini).fingerprint()

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(seed=1), fingerprint(seed=2), fingerprint(rows="packed")}) == 4
    assert fingerprint(seed=1) == fingerprint(seed=1)


def test_a_fingerprint_sees_every_array_name_and_shape():
    rows = packed_rows(shares_of([[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [1, 2, 3]]]), 3, PAD)
    others = [dataclasses.replace(rows, names=("d0", "e")), dataclasses.replace(rows, left_padded=True)]
    for field in ("tokens", "real", "positions", "documents", "domains"):
        array = getattr(rows, field)
        changed = array.copy()
        changed[1, 1] = not changed[1, 1] if field == "real" else changed[1, 1] + 1
        others += [
            dataclasses.replace(rows, **{field: changed}),
            dataclasses.replace(rows, **{field: array.reshape(2, 6)}),
        ]
    prints = {rows.fingerprint(), *(other.fingerprint() for other in others)}
    assert len(prints) == 1 + len(others)
    again = dataclasses.replace(rows, tokens=np.asfortranarray(rows.tokens), positions=rows.positions.astype(">i4"))
    assert again.fingerprint() == rows.fingerprint()  # the machine's order of bytes is not part of it


def test_a_vocabulary_without_padding_is_refused():
    nameless = Vocabulary(3, {}, {}, (), (), lambda texts, special: [[1] for _ in texts], str)
    with pytest.raises(CheckpointError, match="the tokenizer has neither a pad token nor an EOS token"):
        make_rows(recipe(("news", ARTICLES, "article", False, 1)), nameless, None)


def test_512_rows_of_512_tokens_are_fast(tmp_path, mini):
    articles = [json.loads(line)["article"] for line in ARTICLES.open()]
    joined = ["\n\n".join((articles * 2)[at : at + 4]) for at in range(len(articles))] * 2
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"article": text}) + "\n" for text in joined[:520]))
    for how in ("padded", "packed"):
        start = time.perf_counter()
        rows = make_rows(recipe(("news", tmp_path / "a.jsonl", "article", False, 512), rows=how, length=512), *mini)
        seconds = time.perf_counter() - start
        assert rows.tokens.shape == (512, 512)
        assert seconds < 10  # 0.7 s on an idle machine


def test_rows_and_datasets_load_nothing_heavy():
    code = "import sys, halfbyte.calibrate.token_rows; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("torch", "transformers", "pydantic", "jinja2", "pyarrow", "tokenizers", "tiktoken"):
        assert f"'{name}'" not in loaded
