"""Every string can be encoded, Kimi's special tokens have Kimi's ids, and transformers reads the same file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import tokenizer
from training.shape import MINI

# Distances from [BOS] in Kimi-K2.6's vocabulary, where [BOS] is 163584.
KIMI = {
    "[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|im_user|>": 3, "<|im_assistant|>": 4, "[EOT]": 9, "<|im_system|>": 10,
    "<|tool_calls_section_begin|>": 11, "<|tool_calls_section_end|>": 12, "<|tool_call_begin|>": 13,
    "<|tool_call_argument_begin|>": 14, "<|tool_call_end|>": 15, "<|im_middle|>": 17, "<|media_begin|>": 18,
    "<|media_content|>": 19, "<|media_end|>": 20, "<|media_pad|>": 21, "<think>": 22, "</think>": 23,
}  # fmt: skip
SEEN_BY_PARSERS = ("<|tool_call", "<think>", "</think>")


@pytest.fixture(scope="module")
def known():
    return tokenizer.load()


@pytest.fixture(scope="module")
def of_transformers():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer.FOLDER)


@given(st.text())
def test_every_text_comes_back(text):
    known = tokenizer.load()
    assert known.decode(known.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_every_byte_is_a_token_and_the_vocabulary_is_full(known):
    assert known.get_vocab_size() == MINI.vocabulary
    assert all(known.token_to_id(letter) is not None for letter in tokenizer.pre_tokenizers.ByteLevel.alphabet())


def test_special_tokens_lie_as_in_kimi(known):
    first = MINI.vocabulary - tokenizer.SPECIAL_TOKENS
    assert {name: known.token_to_id(name) - first for name in KIMI} == KIMI
    assert known.token_to_id("[UNK]") == MINI.vocabulary - 2
    assert known.token_to_id("[PAD]") == MINI.vocabulary - 1
    for name in KIMI:
        assert known.encode(f"a{name}b", add_special_tokens=False).tokens == ["a", name, "b"]


def test_numbers_are_read_digit_by_digit(known):
    assert known.encode("120+45", add_special_tokens=False).tokens == ["1", "2", "0", "+", "4", "5"]
    assert not [token for token in known.get_vocab(with_added_tokens=False) if sum(c.isdigit() for c in token) > 1]


def test_transformers_reads_the_same_ids_without_code_of_ours(known, of_transformers):
    text = "Question: Ada has 12 apples.\n<|im_user|>user<|im_middle|>ñ 日本 🙂<|im_end|>"
    assert of_transformers(text)["input_ids"] == known.encode(text, add_special_tokens=False).ids
    assert (of_transformers.bos_token, of_transformers.eos_token, of_transformers.pad_token) == (
        "[BOS]", "[EOS]", "[PAD]",
    )  # fmt: skip


def test_what_parsers_need_survives_skip_special_tokens(of_transformers):
    for name in KIMI:
        shown = of_transformers.decode(of_transformers(f"a{name}b")["input_ids"], skip_special_tokens=True)
        assert shown == (f"a{name}b" if name.startswith(SEEN_BY_PARSERS) else "ab")


def test_the_committed_config_is_what_the_script_writes():
    assert json.loads((tokenizer.FOLDER / "tokenizer_config.json").read_text()) == tokenizer.config()


def test_learning_again_gives_the_same_tokenizer():
    texts = [f"the {word} of {number}" for number in range(40) for word in ("house", "horse", "mouse")]
    first, second = (tokenizer.learn(iter(texts)).to_str() for _ in range(2))
    assert first == second
    assert tokenizer.Tokenizer.from_str(first).get_vocab_size() == MINI.vocabulary
