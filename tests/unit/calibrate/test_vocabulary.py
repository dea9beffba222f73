"""Tokenizers: Kimi's from its merges, others from tokenizer.json; special tokens only where intended."""

import base64
import dataclasses
import functools
import itertools
import json
import os
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from halfbyte.calibrate import tokenizer as reader
from halfbyte.calibrate.tokenizer import load_vocabulary
from halfbyte.errors import CheckpointError

REPOSITORY = Path(__file__).parents[3]
# Moonshot's vocabulary is not ours to commit: a folder with it and golden_ids.jsonl may be named, or lie beside us.
KIMI = Path(os.environ.get("HALFBYTE_KIMI_TOKENIZER") or REPOSITORY.parent / "shared" / "kimi" / "tokenizer")

# The words of Kimi's encoder, spelled out once more.
WORDS = regex.compile(
    r"(?V1)[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LEARNED = "the then don't we'll i'm WE'LL 12 123 2026 你好 世界 今天 once upon a time // == \n\n \t  über"


def small_ranks() -> dict[bytes, int]:
    """Bytes, then every prefix of every word of a short text: a few hundred merges."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    for word in [*LEARNED.split(" "), *(" " + word for word in LEARNED.split(" ")), "'t", "'ll", "n't"]:
        raw = word.encode()
        for end in range(2, len(raw) + 1):
            ranks.setdefault(raw[:end], len(ranks))
    return ranks


def write_kimi(folder: Path, ranks=None, **changes) -> Path:
    folder.mkdir(exist_ok=True)
    ranks = ranks or small_ranks()
    lines = [base64.b64encode(token) + b" " + str(rank).encode() for token, rank in ranks.items()]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    first = len(ranks)
    named = {first: "[BOS]", first + 1: "[EOS]", first + 2: "<|im_end|>", first + 5: "<think>", first + 255: "[PAD]"}
    config = {
        "added_tokens_decoder": {
            str(id): {"content": text, "special": text != "<think>"} for id, text in named.items()
        },
        "bos_token": "[BOS]",
        "eos_token": {"content": "[EOS]"},
        "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        **changes,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def kimi(tmp_path_factory):
    return load_vocabulary(write_kimi(tmp_path_factory.mktemp("kimi")))


def by_hand(text: str) -> list[int]:
    """Byte pair encoding by definition: the lowest rank first, word by word."""
    ranks, ids = small_ranks(), []
    for word in WORDS.findall(text):
        parts = [bytes([byte]) for byte in word.encode()]
        while pairs := [(ranks[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in ranks]:
            at = min(pairs)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [ranks[part] for part in parts]
    return ids


def test_ids_and_names_of_a_small_kimi_vocabulary(kimi):
    first = len(small_ranks())
    assert kimi.size == first + 256
    assert (kimi.eos, kimi.pad) == (first + 1, first + 255)
    assert kimi.special["<think>"] == first + 5
    assert kimi.special[f"<|reserved_token_{first + 3}|>"] == first + 3
    assert len(kimi.special) == 256
    assert (kimi.before, kimi.after) == ((), ())
    assert kimi.named == {"bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the then",
        "I'm don't WE'LL you've",
        "你好世界 the 今天",
        "1234567 2026",
        "  a  \n\n b\r\n",
        "a\u0301 über X.",
        "a'sb",
    ],
)
def test_kimi_words_are_split_and_merged_by_definition(kimi, text):
    assert kimi.encode(text) == by_hand(text)


@given(text=st.text(st.sampled_from("the'sdlmtLWE 你好世ü\u0301ス한1\uff123²\n\r\t\u00a0.,/=_")))
def test_any_text_is_split_and_merged_by_definition(kimi, text):
    assert kimi.encode(text) == by_hand(text)


def test_special_tokens_are_read_only_where_they_are_meant(kimi):
    text = "the<think>then<|im_end|>"
    meant = kimi.encode(text, special=True)
    assert kimi.special["<think>"] in meant
    assert kimi.special["<|im_end|>"] in meant
    assert not set(kimi.encode(text)) & set(kimi.special.values())


def test_half_a_character_is_replaced_not_refused(kimi):
    assert kimi.encode("a\ud800b") == kimi.encode("a\ufffdb")


def cut_by_hand(text: str, whole: int, run: int) -> list[str]:
    """Character by character: a new piece every `whole` characters, and when a run exceeds `run`."""
    pieces = []
    for start in range(0, len(text), whole):
        part, piece, length = text[start : start + whole], "", 0
        for before, now in itertools.pairwise("\0" + part):
            same = bool(piece) and before.isspace() == now.isspace()
            length = length + 1 if same or not piece else 1
            if length > run:
                pieces.append(piece)
                piece, length = "", 1
            piece += now
        pieces.append(piece)
    return pieces


@given(text=st.text(st.sampled_from("ab \n\u00a0\x1c"), max_size=80))
def test_long_texts_are_cut_where_kimi_cuts_them(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_KIMI_TEXT", 20)
        patch.setattr(reader, "_KIMI_RUN", 4)
        assert list(reader._kimi_pieces(text)) == cut_by_hand(text, 20, 4)


def test_a_long_word_is_cut_before_it_is_merged(kimi):
    pieces = list(reader._kimi_pieces("x" * 60_000 + " " + "y" * 10))
    assert [len(piece) for piece in pieces] == [25_000, 25_000, 10_011]
    assert kimi.encode("th" * 12_499 + "the" * 2) == [
        id for text in ("th" * 12_499 + "th", "e" + "the") for id in kimi.encode(text)
    ]


@pytest.mark.skipif(not KIMI.is_dir(), reason=f"Kimi's vocabulary is not in {KIMI}; name it in HALFBYTE_KIMI_TOKENIZER")
def test_kimis_own_vocabulary_gives_kimis_own_ids():
    vocabulary = load_vocabulary(KIMI)
    golden = [json.loads(line) for line in (KIMI / "golden_ids.jsonl").read_text().splitlines()]
    assert len(golden) == 300
    wrong = [item["text"] for item in golden if vocabulary.encode(item["text"], special=True) != item["ids"]]
    assert wrong == []
    assert (vocabulary.size, vocabulary.eos, vocabulary.pad) == (163840, 163585, 163839)


def refused(folder: Path, what: str) -> None:
    with pytest.raises(CheckpointError, match=what) as caught:
        load_vocabulary(folder)
    assert caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda text: text.replace(b"AA== 0", b"AA== zero"), "line 1 is not a base64 token and its rank"),
        (lambda text: text.replace(b"AQ== 1\n", b"A*== 1\n"), "line 2 is not a base64 token and its rank"),
        (lambda text: text.replace(b"AQ== 1\n", b"AQ== 1 1\n"), "line 2 is not a base64 token and its rank"),
        (lambda text: text.replace(b"AQ== 1\n", b""), "gaps or duplicates"),
        (lambda text: text.replace(b"AQ== 1\n", b"AQEBAQ== 1\n"), "no token for byte 1"),
    ],
)
def test_a_broken_tiktoken_file_is_refused(tmp_path, spoil, what):
    path = write_kimi(tmp_path) / "tiktoken.model"
    path.write_bytes(spoil(path.read_bytes()))
    refused(tmp_path, what)


def test_a_vocabulary_of_another_kind_is_refused(tmp_path):
    refused(tmp_path, "no tokenizer found")
    refused(write_kimi(tmp_path, tokenizer_class="HYTokenizer"), "not for HYTokenizer")
    refused(write_kimi(tmp_path, added_tokens_decoder={"3": {"content": "[BOS]"}}), "outside the reserved ids")
    (tmp_path / "tokenizer_config.json").write_text("{")
    refused(tmp_path, "not valid JSON")
    (tmp_path / "tokenizer_config.json").write_text("[]")
    refused(tmp_path, "not a JSON object")


def test_a_broken_tokenizer_json_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    refused(tmp_path, "not a valid tokenizer")


def test_a_tokenizer_json_reads_special_tokens_only_where_they_are_meant():
    vocabulary = load_vocabulary(REPOSITORY / "models" / "kimi-mini")
    assert (vocabulary.size, vocabulary.eos, vocabulary.pad) == (3072, 3009, 3071)
    text = "a<think>b</think><|im_end|>"  # the first two are not even called special by the config
    added = set(vocabulary.special.values())
    assert [id for id in vocabulary.encode(text, special=True) if id in added] == [3030, 3031, 3010]
    assert not set(vocabulary.encode(text)) & added
    assert vocabulary.encode_all(["a", text]) == [vocabulary.encode("a"), vocabulary.encode(text)]
    assert vocabulary.encode("\udfff") == vocabulary.encode("\ufffd")


def test_special_tokens_around_a_text_are_known(tmp_path):
    bytes_only = Tokenizer(
        models.BPE({char: at for at, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.add_special_tokens(["<s>", "</s>"])
    bytes_only.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)]
    )
    bytes_only.enable_truncation(2)
    bytes_only.save(str(tmp_path / "tokenizer.json"))
    vocabulary = load_vocabulary(tmp_path)
    assert (vocabulary.before, vocabulary.after) == ((256,), (257,))
    assert len(vocabulary.encode("four")) == 4  # without the frame, and what it was saved to cut is not cut
    assert vocabulary.pad is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    assert load_vocabulary(tmp_path).pad == 257


# The first tokens of long texts.

MINI = REPOSITORY / "models" / "kimi-mini"
PIECES = st.sampled_from(
    ["the", "then", "don't", " ", "  ", "\n", "\r\n", "!!", "_", "12", "2026", "你好", "ü\u0301", "\t", "\u00a0",
     "<|im_end|>", "<think>", "X", "'ll", "\x1c", "..", "\ud83d\ude00"]
)  # fmt: skip


@pytest.mark.parametrize("special", [False, True])
@given(texts=st.lists(st.lists(PIECES, max_size=60).map("".join), max_size=4), count=st.integers(0, 12))
def test_the_first_tokens_are_those_of_the_whole_text(kimi, special, texts, count):
    """Also where a text is cut at once, and as near as can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_CHARACTERS", 1)
        patch.setattr(reader, "_SPARE", 1)
        for vocabulary in (kimi, load_mini()):
            wanted = [ids[:count] for ids in vocabulary.encode_all(texts, special=special)]
            assert vocabulary.encode_first(texts, count, special=special) == wanted


@functools.cache
def load_mini():
    return load_vocabulary(MINI)


def test_text_after_the_first_tokens_is_not_encoded(kimi):
    """However long a text is; and where its tokens are long or few, more of it is, up to all."""
    seen = []

    def encode(texts, special):
        seen.extend(texts)
        return kimi._encode(texts, special)

    watched = dataclasses.replace(kimi, _encode=encode)
    long = "the 你好 then\n" * 1_000_000
    assert watched.encode_first([long, "the"], 24) == [kimi.encode(long[:2000])[:24], kimi.encode("the")]
    assert sum(map(len, seen)) < 24 * 64 + 30
    for text in ("你" * 5000, " " * 5000 + "the", "a\t" * 3000):  # no place to cut
        seen.clear()
        assert watched.encode_first([text], 24) == [kimi.encode(text)[:24]]
        assert seen == [text]
    seen.clear()
    few = " ".join(["=" * 25_000] * 4)  # which is few tokens for many characters in other vocabularies
    wide = dataclasses.replace(kimi, _encode=lambda texts, _: seen.extend(texts) or [[len(t)] for t in texts])
    assert wide.encode_first([few], 24) == [[len(few)]]
    assert [len(text) for text in seen] == [25_000, 25_000, len(few)]


def test_ids_decode_to_their_text():
    vocabulary = load_vocabulary(Path(__file__).parents[3] / "models" / "kimi-mini")
    text = "Zwei Füße, <|im_end|> und 东方!\n\n"
    assert vocabulary.decode(vocabulary.encode(text)) == text
    ids = vocabulary.encode(text, special=True)
    assert vocabulary.special["<|im_end|>"] in ids
    assert vocabulary.decode(ids) == text


def test_kimi_ids_decode_to_their_text(kimi):
    for text in ("a b c", "Füße <|im_end|>"):
        assert kimi.decode(kimi.encode(text)) == text
    assert kimi.decode(kimi.encode("东")[:1]) == "\ufffd"  # a third of a character
    assert kimi.decode([kimi.special["<|im_end|>"]]) == "<|im_end|>"
