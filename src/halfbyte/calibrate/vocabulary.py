"""A checkpoint's vocabulary: text to token ids and back, read from its data files alone; none of its code is run.

Two files are read. `tiktoken.model` is Kimi's: the merges are in the file, while the pattern that splits text into
words and the names of the special tokens are in the code and the config beside it; both are known here.
transformers' own conversion of that file gets contractions wrong ("don't" in three tokens instead of two).
`tokenizer.json` is everybody else's, and says all there is to know.

A text may spell a special token, such as <|im_end|>. It becomes that token only where the caller says so: what a chat
template wrote is meant, what a data set wrote is text, and may not end a turn or open a tool call by itself.
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

from halfbyte.errors import CheckpointError
from halfbyte.source.foreign import plain_bytes, read_json

TIKTOKEN = "tiktoken.model"
TOKENIZERS = "tokenizer.json"
CONFIG = "tokenizer_config.json"

# Kimi's words: Han characters by themselves; then letters with capitals first, whatever stands before them, and their
# contraction; up to three digits; marks; line ends; spaces. The classes are intersections, which only tiktoken reads.
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
# Kimi cuts long texts before it looks for words, so that a cut can change the tokens beside it. Characters, not bytes.
_KIMI_TEXT = 400_000
_KIMI_RUN = 25_000  # of spaces, or of anything else
_RUNS = re.compile(r"\s+|\S+")

# Where a long text is cut if only its first tokens are wanted: before a space, and before a line end that follows a
# letter or a digit, a word ends, for Kimi and for every tokenizer.json that splits text into words.
_ENDS = re.compile(r"(?<=\S)(?= )|(?<=[^\W_])(?=\n)")
_CHARACTERS = 64  # of a text for each token that is wanted, at first; a token of English has four
_SPARE = 2  # times the tokens that are wanted must be before a cut

_BYTES = 256
_PROBE = "a"

# Texts to ids; True where special tokens that a text spells are meant.
_Encode = Callable[[Sequence[str], bool], list[list[int]]]
_Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Text to token ids and back, and the ids that stand for no text."""

    size: int  # all ids, special and reserved ones too
    special: Mapping[str, int]  # every added token by its text, whether its config calls it special or not
    named: Mapping[str, str]  # what templates are given: bos_token, eos_token, pad_token, ...
    before: tuple[int, ...]  # what is put before a plain text, where the vocabulary says so (often a BOS)
    after: tuple[int, ...]
    _encode: _Encode
    _decode: _Decode

    @property
    def eos(self) -> int | None:
        """Return the tokenizer's end of a text; what ends an answer can be another one."""
        return self._id("eos_token")

    @property
    def pad(self) -> int | None:
        """Return what rows are padded with: the pad token, or the end of a text where there is none, as ModelOpt."""
        pad = self._id("pad_token")
        return self.eos if pad is None else pad

    def _id(self, name: str) -> int | None:
        return self.special.get(self.named.get(name, ""))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of a text, without `before` and `after`."""
        return self.encode_all([text], special=special)[0]

    def encode_all(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Return the ids of each text; `special` where special tokens that a text spells are meant."""
        return self._encode([_whole(text) for text in texts], special)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens spelled out; bytes that are no text become U+FFFD."""
        return self._decode(ids)

    def encode_first(self, texts: Sequence[str], count: int, *, special: bool = False) -> list[list[int]]:
        """Return the first ids of each text, as many as are wanted, without encoding all that lies behind them.

        Texts are cut where words end, so that the ids before a cut are those of the whole text. Tokens that span words,
        which few vocabularies have, could be others beside the cut; so it lies as many ids again behind the last one.
        """
        found: dict[int, list[int]] = {}
        characters = max(count, 1) * _CHARACTERS
        while waiting := [at for at in range(len(texts)) if at not in found]:
            parts = [_beginning(texts[at], characters) for at in waiting]
            for at, part, ids in zip(waiting, parts, self.encode_all(parts, special=special), strict=True):
                if len(part) == len(texts[at]) or len(ids) >= _SPARE * count:
                    found[at] = ids[:count]
            characters *= 8
        return [found[at] for at in range(len(texts))]


def load_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a checkpoint's folder."""
    config = _read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    # Where both files lie, the second was converted from the first.
    if (folder / TIKTOKEN).exists():
        return _kimi(folder, config)
    if (folder / TOKENIZERS).exists():
        return _tokenizers(folder / TOKENIZERS, config)
    raise CheckpointError(
        "there is no vocabulary", where=str(folder), fix=f"download {TIKTOKEN} or {TOKENIZERS}, and {CONFIG}"
    )


def _kimi(folder: Path, config: Mapping[str, Any]) -> Vocabulary:
    kind = config.get("tokenizer_class")
    if kind != _KIMI_CLASS:
        what = f"the words of a {TIKTOKEN} are known for Kimi's {_KIMI_CLASS}, and this is {kind or 'without a class'}"
        raise CheckpointError(what, where=str(folder / CONFIG), fix=f"give a folder with a {TOKENIZERS}")
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
            what = f"token {key} lies outside the reserved ids {ids.start} to {ids.stop - 1}"
            raise CheckpointError(what, where=str(path), fix="download it again: it is of another vocabulary")
        names[int(key)] = token["content"]
    return {names.get(id, f"<|reserved_token_{id}|>"): id for id in ids}


def _kimi_pieces(text: str) -> Iterator[str]:
    """Cut a long text where Kimi's own encoder cuts it."""
    for start in range(0, len(text), _KIMI_TEXT):
        part = text[start : start + _KIMI_TEXT]
        cut = 0
        for run in _RUNS.finditer(part) if len(part) > _KIMI_RUN else ():
            for end in range(run.start() + _KIMI_RUN, run.end(), _KIMI_RUN):
                yield part[cut:end]
                cut = end
        yield part[cut:]


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Read the merges: a token in base 64 and its rank on every line."""
    # tiktoken's own reader keeps a copy by path in the temporary folder, and would give it for a file that has changed.
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(plain_bytes(path).splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            what = f"line {number} is not a token in base 64 and its rank"
            raise CheckpointError(what, where=str(path), fix="download it again") from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise CheckpointError("the ranks have gaps or repeat", where=str(path), fix="download it again")
    if missing := [byte for byte in range(_BYTES) if bytes([byte]) not in ranks]:
        what = f"there is no token for the byte {missing[0]}"
        raise CheckpointError(what, where=str(path), fix="download it again")
    return ranks


def _tokenizers(path: Path, config: Mapping[str, Any]) -> Vocabulary:
    stored = _read_json(path)
    # The library always finds added tokens in a text; a vocabulary without any reads them as text.
    full = _build(path, {**stored, "truncation": None, "padding": None})
    plain = _build(path, {**stored, "truncation": None, "padding": None, "added_tokens": []})

    def encode(texts: Sequence[str], with_special: bool) -> list[list[int]]:
        reader = full if with_special else plain
        return [found.ids for found in reader.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(ids: Sequence[int]) -> str:
        return full.decode(list(ids), skip_special_tokens=False)

    added = full.get_added_tokens_decoder()
    special = {str(token.content): id for id, token in sorted(added.items())}
    size = max(full.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return Vocabulary(size, special, _named(config), *_frame(full), encode, decode)


def _build(path: Path, stored: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(stored))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"it is not a vocabulary: {error}", where=str(path), fix="download it again") from error


def _frame(tokenizer: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the vocabulary puts before and after a text, by looking at a short one."""
    bare = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    framed = tokenizer.encode(_PROBE).ids
    start = next(at for at in range(len(framed)) if framed[at : at + len(bare)] == bare)
    return tuple(framed[:start]), tuple(framed[start + len(bare) :])


def _named(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that have a name, such as eos_token: a text, or a token with its properties."""
    named: dict[str, str] = {}
    for key, value in config.items():
        content = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            named[key] = content
    return named


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except ValueError as error:
        raise CheckpointError(f"it is not JSON: {error}", where=str(path), fix="download it again") from error
    if not isinstance(found, dict):
        raise CheckpointError("it is not a JSON object", where=str(path), fix="download it again")
    return cast("dict[str, Any]", found)


def _beginning(text: str, characters: int) -> str:
    """Return a text up to the first end of a word behind so many characters; all of it where there is none."""
    end = _ENDS.search(text, characters) if len(text) > characters else None
    return text[: end.start()] if end else text


def _whole(text: str) -> str:
    """Replace halves of characters, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
