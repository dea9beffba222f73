"""Rows of tokens, all of one length: what the model runs on.

Padded rows are ModelOpt's (hf_ptq): a sample a row, cut at the sequence length, padded on the left to the longest of
all samples, not of a batch, so that batches of any size have the same rows. Positions count the columns, padding too,
because that is what transformers gives a model that is handed a mask and no positions. As in ModelOpt, a plain text
that spells a special token is given that token: its tokenizer does not tell text from template.

Packed rows waste nothing: samples follow each other through full rows, each seeing only itself, with positions that
begin at 0. What does not fit in a row goes on in the next, as a text of its own. Here, a plain text cannot spell a
special token. Each data set fills the rows that are its share.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.datasets import Text, read_texts
from halfbyte.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from halfbyte.calibrate.chat import ChatTemplate
    from halfbyte.calibrate.vocabulary import Vocabulary
    from halfbyte.recipe.decisions import Calibrate

PADDING = -1  # the document and the domain of padding
_TOGETHER = 64  # texts that are encoded together, on all cores where the vocabulary can


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Tokens in rows of one length, and what each token sees: causally, the tokens of its row with its number."""

    tokens: NDArray[np.int32]  # [R, L]
    real: NDArray[np.bool_]  # [R, L], False: padding
    positions: NDArray[np.int32]  # [R, L], for rope
    documents: NDArray[np.int32]  # [R, L], one number for each sample, PADDING for padding
    domains: NDArray[np.int16]  # [R, L], index into names, PADDING for padding
    names: tuple[str, ...]
    left_padded: bool  # one sample a row: the mask is transformers' own for attention_mask=real

    def tokens_of_domains(self) -> dict[str, int]:
        """Return how many tokens each domain has."""
        counts = np.bincount(self.domains[self.real], minlength=len(self.names))
        return dict(zip(self.names, counts.tolist(), strict=True))

    def fingerprint(self) -> str:
        """Return the SHA-256 of all that the model is given and the statistics are kept by."""
        digest = hashlib.sha256(repr((self.names, self.left_padded)).encode())
        stored = ((self.tokens, "<i4"), (self.real, "|b1"), (self.positions, "<i4"))
        for array, dtype in (*stored, (self.documents, "<i4"), (self.domains, "<i2")):
            digest.update(f"{dtype}{array.shape}".encode())
            digest.update(array.astype(dtype, copy=False).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Document:
    """The tokens of one sample."""

    tokens: Sequence[int]
    domain: str


@dataclass(frozen=True, slots=True)
class Share:
    """The rows that a data set is to fill, and what it has for them."""

    source: str  # for errors
    documents: Iterable[Document]
    rows: int


def make_rows(calibrate: Calibrate, vocabulary: Vocabulary, template: ChatTemplate | None) -> Rows:
    """Read the data sets of a recipe into rows."""
    pad = vocabulary.pad
    if pad is None:
        what, fix = "the vocabulary has neither a pad token nor an end of text", "name eos_token in its config"
        raise CheckpointError(what, where="tokenizer_config.json", fix=fix)
    padded = calibrate.rows == "padded"
    length = calibrate.sequence_length
    shares: list[Share] = []
    for dataset in calibrate.datasets:
        texts = read_texts(dataset, calibrate.seed, template)
        limited = itertools.islice(texts, dataset.share) if padded else texts
        documents = _documents(limited, vocabulary, length if padded else None)
        shares.append(Share(dataset.source, documents, dataset.share))
    return padded_rows(shares, length, pad) if padded else packed_rows(shares, length, pad)


def padded_rows(shares: Sequence[Share], length: int, pad: int) -> Rows:
    """Return a row for each sample: cut at the length, padded on the left to the longest."""
    documents = [document for share in shares for document in _exactly(share)]
    longest = min(length, max(len(document.tokens) for document in documents))
    blank = _Blank(len(documents), longest, pad)
    for row, document in enumerate(documents):
        kept = document.tokens[:longest]
        blank.write(row * longest + longest - len(kept), kept, row, document.domain)
    positions = np.tile(np.arange(longest, dtype=np.int32), (len(documents), 1))
    return blank.rows(positions, left_padded=True)


def packed_rows(shares: Sequence[Share], length: int, pad: int) -> Rows:
    """Return full rows; only the last one of a share can have padding, on the right, where its data ends."""
    blank = _Blank(sum(share.rows for share in shares), length, pad)
    numbers = itertools.count()
    end = 0
    for share in shares:
        start, end = end, end + share.rows * length
        at = start
        for document in share.documents:
            kept = document.tokens[: end - at]
            blank.write(at, kept, next(numbers), document.domain)
            at += len(kept)
            if at == end:
                break
        filled = -(-(at - start) // length)
        if filled < share.rows:
            raise _too_few(share, filled, "rows")
    return blank.rows(_restarting(blank.documents), left_padded=False)


class _Blank:
    """Rows of padding to write documents on."""

    def __init__(self, rows: int, length: int, pad: int) -> None:
        self.tokens = np.full((rows, length), pad, np.int32)
        self.documents = np.full((rows, length), PADDING, np.int32)
        self.domains = np.full((rows, length), PADDING, np.int16)
        self.names: dict[str, int] = {}

    def write(self, at: int, tokens: Sequence[int], number: int, domain: str) -> None:
        """Write tokens from a place on, counted through all rows."""
        place = slice(at, at + len(tokens))
        self.tokens.reshape(-1)[place] = tokens
        self.documents.reshape(-1)[place] = number
        self.domains.reshape(-1)[place] = self.names.setdefault(domain, len(self.names))

    def rows(self, positions: NDArray[np.int32], *, left_padded: bool) -> Rows:
        """Return what was written."""
        real = self.documents != PADDING
        names = tuple(self.names)
        return Rows(self.tokens, real, positions, self.documents, self.domains, names, left_padded)


def _restarting(documents: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return positions that begin at 0 with each row and each change of document."""
    columns = np.arange(documents.shape[1], dtype=np.int32)
    begins = np.ones(documents.shape, np.bool_)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return columns - np.maximum.accumulate(np.where(begins, columns, np.int32(0)), axis=1)


def _documents(texts: Iterator[Text], vocabulary: Vocabulary, limit: int | None) -> Iterator[Document]:
    """Give the tokens of texts; with a limit, of padded rows, no more of each than the limit."""
    frame = len(vocabulary.before) + len(vocabulary.after)

    def encoded(texts: Sequence[str], *, special: bool, beside: int) -> Iterator[list[int]]:
        if limit is None:
            return iter(vocabulary.encode_all(texts, special=special))
        return iter(vocabulary.encode_first(texts, max(limit - beside, 0), special=True))

    while batch := list(itertools.islice(texts, _TOGETHER)):
        plain = [text.text for text in batch if not text.from_template]
        templated = [text.text for text in batch if text.from_template]
        found = {
            False: encoded(plain, special=False, beside=frame),
            True: encoded(templated, special=True, beside=0),
        }
        for text in batch:
            tokens = next(found[text.from_template])
            # A template writes its own beginning. What frames a plain text is never cut off.
            before, after = ((), ()) if text.from_template else (vocabulary.before, vocabulary.after)
            if framed := [*before, *tokens, *after]:
                yield Document(framed, text.domain)


def _exactly(share: Share) -> list[Document]:
    found = list(itertools.islice(share.documents, share.rows))
    if len(found) < share.rows:
        raise _too_few(share, len(found), "samples")
    return found


def _too_few(share: Share, found: int, what: str) -> UsageError:
    fix = f"give more data, or ask for {found} {what}" if found else "give data with text in it"
    return UsageError(f"it has {found} of {share.rows} {what}", where=f"data '{share.source}'", fix=fix)
