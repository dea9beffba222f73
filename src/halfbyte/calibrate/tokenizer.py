"""Tokenizers, loaded from a checkpoint's data files without running its code.

Two files are supported. Kimi's `tiktoken.model` contains only the merges. The pattern that splits text into words is
built in, because Kimi has it in code, and the special tokens come from the config. transformers' own conversion of that
file gets contractions wrong ("don't" in three tokens instead of two). `tokenizer.json` is self-contained.

A text may spell a special token, such as <|im_end|>. It is tokenized as that token only if the caller requests it: in
the output of a chat template it is intended, in a dataset it is text and must not end a turn or open a tool call.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tiktoken
import tokenizers

from halfbyte.calibrate.chat import CONFIG
from halfbyte.checkpoint.untrusted_files import plain_bytes, read_json
from halfbyte.errors import CheckpointError

TIKTOKEN = "tiktoken.model"
TOKENIZERS = "tokenizer.json"

# Kimi's words: runs of Han characters; letters, capitals first, with one preceding character and a contraction; up to
# three digits; punctuation; line ends; spaces. Only tiktoken supports the class intersections (&&).
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        f"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_KIMI_CLASS = "TikTokenTokenizer"
_KIMI_RESERVED = 256  # ids above the merges; those without a name are <|reserved_token_N|>
# Kimi cuts long texts before it splits words, which can change the tokens at a cut. Characters, not bytes.
_KIMI_TEXT = 400_000
_KIMI_RUN = 25_000  # of spaces, or of anything else
_RUNS = re.compile(r"\s+|\S+")

# Where a long text is cut if only its first tokens are needed: before a space, and before a line end after a letter or
# digit. Words end there for Kimi and for every tokenizer.json that splits text into words.
_ENDS = re.compile(r"(?<=\S)(?= )|(?<=[^\W_])(?=\n)")
_CHARACTERS = 64  # characters per requested token in the first attempt; an English token has about four
_SPARE = 2  # the text before a cut must have this multiple of the requested tokens

_BYTES = 256
_PROBE = "a"

# Texts to ids; True to tokenize special tokens spelled in the text as such.
_Encode = Callable[[Sequence[str], bool], list[list[int]]]
_Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """A tokenizer and its special tokens."""

    size: int  # all ids, including special and reserved ones
    special: Mapping[str, int]  # all added tokens by text, marked as special or not
    named: Mapping[str, str]  # passed to templates: bos_token, eos_token, pad_token, ...
    before: tuple[int, ...]  # ids prepended to a plain text (often BOS)
    after: tuple[int, ...]
    _encode: _Encode
    _decode: _Decode

    @property
    def eos(self) -> int | None:
        """Return the tokenizer's EOS token, which may differ from the token that ends an answer."""
        return self._id("eos_token")

    @property
    def pad(self) -> int | None:
        """Return the pad token, or EOS if there is none, as in ModelOpt."""
        pad = self._id("pad_token")
        return self.eos if pad is None else pad

    def _id(self, name: str) -> int | None:
        return self.special.get(self.named.get(name, ""))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of a text, without `before` and `after`."""
        return self.encode_all([text], special=special)[0]

    def encode_all(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Return the ids of each text; with `special`, spelled special tokens are tokenized as such."""
        return self._encode([_valid_unicode(text) for text in texts], special)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids with special tokens spelled out; invalid UTF-8 becomes U+FFFD."""
        return self._decode(ids)

    def encode_first(self, texts: Sequence[str], count: int, *, special: bool = False) -> list[list[int]]:
        """Return the first `count` ids of each text without encoding the whole text.

        Texts are cut where words end, so that the ids before a cut equal those of the whole text. In the few tokenizers
        with tokens that span words, ids near the cut may differ, so the cut is at least `count` ids after the last one.
        """
        encoded: dict[int, list[int]] = {}
        characters = max(count, 1) * _CHARACTERS
        while waiting := [at for at in range(len(texts)) if at not in encoded]:
            parts = [_beginning(texts[at], characters) for at in waiting]
            for at, part, ids in zip(waiting, parts, self.encode_all(parts, special=special), strict=True):
                if len(part) == len(texts[at]) or len(ids) >= _SPARE * count:
                    encoded[at] = ids[:count]
            characters *= 8
        return [encoded[at] for at in range(len(texts))]


def load_vocabulary(folder: Path) -> Vocabulary:
    """Load the tokenizer from a checkpoint folder."""
    config = _read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    # If both files exist, tokenizer.json was converted from tiktoken.model.
    if (folder / TIKTOKEN).exists():
        return _kimi(folder, config)
    if (folder / TOKENIZERS).exists():
        return _tokenizers(folder / TOKENIZERS, config)
    raise CheckpointError(
        "no tokenizer found", where=str(folder), fix=f"download {TIKTOKEN} or {TOKENIZERS}, and {CONFIG}"
    )


def _kimi(folder: Path, config: Mapping[str, Any]) -> Vocabulary:
    kind = config.get("tokenizer_class")
    if kind != _KIMI_CLASS:
        what = f"{TIKTOKEN} is supported for Kimi's {_KIMI_CLASS} only, not for {kind or 'an unnamed tokenizer class'}"
        raise CheckpointError(what, where=str(folder / CONFIG), fix=f"use a folder with a {TOKENIZERS}")
    ranks = _read_ranks(folder / TIKTOKEN)
    special = _kimi_special(folder / CONFIG, config, len(ranks))
    encoding = tiktoken.Encoding(
        "kimi", pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=special, explicit_n_vocab=None
    )

    def encode(texts: Sequence[str], with_special: bool) -> list[list[int]]:
        allowed = set(special) if with_special else set[str]()
        return [
            [
                id
                for piece in _kimi_pieces(text)
                for id in encoding.encode(piece, allowed_special=allowed, disallowed_special=())
            ]
            for text in texts
        ]

    def decode(ids: Sequence[int]) -> str:
        return encoding.decode(list(ids), errors="replace")

    return Vocabulary(len(ranks) + _KIMI_RESERVED, special, _named(config), (), (), encode, decode)


def _kimi_special(path: Path, config: Mapping[str, Any], first: int) -> dict[str, int]:
    ids = range(first, first + _KIMI_RESERVED)
    names: dict[int, str] = {}
    for key, token in cast("Mapping[str, Any]", config.get("added_tokens_decoder", {})).items():
        if not key.isdecimal() or int(key) not in ids:
            what = f"token {key} is outside the reserved ids {ids.start} to {ids.stop - 1}"
            raise CheckpointError(what, where=str(path), fix="download it again: it belongs to another tokenizer")
        names[int(key)] = token["content"]
    return {names.get(id, f"<|reserved_token_{id}|>"): id for id in ids}


def _kimi_pieces(text: str) -> Iterator[str]:
    """Split a long text at the positions where Kimi's encoder splits it."""
    for start in range(0, len(text), _KIMI_TEXT):
        part = text[start : start + _KIMI_TEXT]
        cut = 0
        for run in _RUNS.finditer(part) if len(part) > _KIMI_RUN else ():
            for end in range(run.start() + _KIMI_RUN, run.end(), _KIMI_RUN):
                yield part[cut:end]
                cut = end
        yield part[cut:]


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Read the merges: a base64 token and its rank per line."""
    # tiktoken's own reader caches files by path in the temporary folder and would return a stale copy.
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(plain_bytes(path).splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            what = f"line {number} is not a base64 token and its rank"
            raise CheckpointError(what, where=str(path), fix="download it again") from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise CheckpointError("the ranks have gaps or duplicates", where=str(path), fix="download it again")
    if missing := [byte for byte in range(_BYTES) if bytes([byte]) not in ranks]:
        what = f"no token for byte {missing[0]}"
        raise CheckpointError(what, where=str(path), fix="download it again")
    return ranks


def _tokenizers(path: Path, config: Mapping[str, Any]) -> Vocabulary:
    stored = _read_json(path)
    # The library always recognizes added tokens in a text. A second tokenizer without added tokens reads them as text.
    full = _build(path, {**stored, "truncation": None, "padding": None})
    plain = _build(path, {**stored, "truncation": None, "padding": None, "added_tokens": []})

    def encode(texts: Sequence[str], with_special: bool) -> list[list[int]]:
        reader = full if with_special else plain
        return [encoding.ids for encoding in reader.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(ids: Sequence[int]) -> str:
        return full.decode(list(ids), skip_special_tokens=False)

    added = full.get_added_tokens_decoder()
    special = {str(token.content): id for id, token in sorted(added.items())}
    size = max(full.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return Vocabulary(size, special, _named(config), *_frame(full), encode, decode)


def _build(path: Path, stored: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(stored))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"not a valid tokenizer: {error}", where=str(path), fix="download it again") from error


def _frame(tokenizer: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that the tokenizer adds before and after a text."""
    bare = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    framed = tokenizer.encode(_PROBE).ids
    start = next(at for at in range(len(framed)) if framed[at : at + len(bare)] == bare)
    return tuple(framed[:start]), tuple(framed[start + len(bare) :])


def _named(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the named special tokens, such as eos_token, stored as text or as an object."""
    named: dict[str, str] = {}
    for key, value in config.items():
        content = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            named[key] = content
    return named


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except ValueError as error:
        raise CheckpointError(f"not valid JSON: {error}", where=str(path), fix="download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError("not a JSON object", where=str(path), fix="download it again")
    return cast("dict[str, Any]", content)


def _beginning(text: str, characters: int) -> str:
    """Return a text up to the first word end after `characters` characters, or all of it."""
    end = _ENDS.search(text, characters) if len(text) > characters else None
    return text[: end.start()] if end else text


def _valid_unicode(text: str) -> str:
    """Replace lone surrogates, which JSON can contain and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
