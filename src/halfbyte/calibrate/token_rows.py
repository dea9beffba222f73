"""Rows of tokens of equal length, the model's input.

Padded rows follow ModelOpt (hf_ptq): one sample per row, truncated to the sequence length and left-padded to the
longest of all samples, independent of the batch size. Positions count the columns including padding, as in transformers
when a model gets an attention mask without position ids. As in ModelOpt, special tokens spelled in plain text are
tokenized as special tokens.

Packed rows contain padding only at the end of a dataset's last row. Samples are concatenated, attend only to
themselves, and have positions starting at 0. A sample that does not fit into a row continues in the next row as a
separate text. Special tokens spelled in plain text are tokenized as text. Each dataset fills as many rows as its share.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.datasets import Text, read_texts
from halfbyte.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from halfbyte.calibrate.chat import ChatTemplate
    from halfbyte.calibrate.tokenizer import Vocabulary
    from halfbyte.recipe.decisions import Calibrate

PADDING = -1  # document and domain of padding
_BATCH = 64  # texts tokenized together, in parallel if the tokenizer supports it


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Tokens in rows of equal length; a token attends causally to the tokens of its row and document."""

    tokens: NDArray[np.int32]  # [R, L]
    real: NDArray[np.bool_]  # [R, L], False: padding
    positions: NDArray[np.int32]  # [R, L], for rope
    documents: NDArray[np.int32]  # [R, L], sample number, PADDING for padding
    domains: NDArray[np.int16]  # [R, L], index into names, PADDING for padding
    names: tuple[str, ...]
    left_padded: bool  # one sample per row; the mask equals that of transformers for attention_mask=real

    def select(self, share: slice) -> Rows:
        """Return some of the rows, without copying."""
        return replace(
            self,
            tokens=self.tokens[share],
            real=self.real[share],
            positions=self.positions[share],
            documents=self.documents[share],
            domains=self.domains[share],
        )

    def tokens_of_domains(self) -> dict[str, int]:
        """Return the number of tokens per domain."""
        counts = np.bincount(self.domains[self.real], minlength=len(self.names))
        return dict(zip(self.names, counts.tolist(), strict=True))

    def fingerprint(self) -> str:
        """Return the SHA-256 of all arrays, domain names and the padding side."""
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
    """A dataset's documents and the number of rows they fill."""

    source: str  # for errors
    documents: Iterable[Document]
    rows: int


def make_rows(calibrate: Calibrate, vocabulary: Vocabulary, template: ChatTemplate | None) -> Rows:
    """Tokenize the datasets of a recipe into rows."""
    pad = vocabulary.pad
    if pad is None:
        what, fix = "the tokenizer has neither a pad token nor an EOS token", "set eos_token in its config"
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
    """Return one row per sample, truncated to the length and left-padded to the longest."""
    documents = [document for share in shares for document in _exactly(share)]
    longest = min(length, max(len(document.tokens) for document in documents))
    builder = _Builder(len(documents), longest, pad)
    for row, document in enumerate(documents):
        kept = document.tokens[:longest]
        builder.write(row * longest + longest - len(kept), kept, row, document.domain)
    positions = np.tile(np.arange(longest, dtype=np.int32), (len(documents), 1))
    return builder.rows(positions, left_padded=True)


def packed_rows(shares: Sequence[Share], length: int, pad: int) -> Rows:
    """Return full rows; only the last row of a share can have padding, on the right."""
    builder = _Builder(sum(share.rows for share in shares), length, pad)
    numbers = itertools.count()
    end = 0
    for share in shares:
        start, end = end, end + share.rows * length
        at = start
        for document in share.documents:
            kept = document.tokens[: end - at]
            builder.write(at, kept, next(numbers), document.domain)
            at += len(kept)
            if at == end:
                break
        filled = -(-(at - start) // length)
        if filled < share.rows:
            raise TooFewRowsError(share, filled, "rows")
    return builder.rows(_restarting(builder.documents), left_padded=False)


class _Builder:
    """Rows under construction, initially all padding."""

    def __init__(self, rows: int, length: int, pad: int) -> None:
        self.tokens = np.full((rows, length), pad, np.int32)
        self.documents = np.full((rows, length), PADDING, np.int32)
        self.domains = np.full((rows, length), PADDING, np.int16)
        self.names: dict[str, int] = {}

    def write(self, at: int, tokens: Sequence[int], number: int, domain: str) -> None:
        """Write tokens at an offset into the flattened rows."""
        place = slice(at, at + len(tokens))
        self.tokens.reshape(-1)[place] = tokens
        self.documents.reshape(-1)[place] = number
        self.domains.reshape(-1)[place] = self.names.setdefault(domain, len(self.names))

    def rows(self, positions: NDArray[np.int32], *, left_padded: bool) -> Rows:
        """Return the finished rows."""
        real = self.documents != PADDING
        names = tuple(self.names)
        return Rows(self.tokens, real, positions, self.documents, self.domains, names, left_padded)


def _restarting(documents: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return positions that restart at 0 with each row and each document."""
    columns = np.arange(documents.shape[1], dtype=np.int32)
    begins = np.ones(documents.shape, np.bool_)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return columns - np.maximum.accumulate(np.where(begins, columns, np.int32(0)), axis=1)


def _documents(texts: Iterator[Text], vocabulary: Vocabulary, limit: int | None) -> Iterator[Document]:
    """Yield the tokens of each text, truncated to the limit if there is one (padded rows)."""
    frame = len(vocabulary.before) + len(vocabulary.after)

    def encoded(texts: Sequence[str], *, special: bool, beside: int) -> Iterator[list[int]]:
        if limit is None:
            return iter(vocabulary.encode_all(texts, special=special))
        return iter(vocabulary.encode_first(texts, max(limit - beside, 0), special=True))

    while batch := list(itertools.islice(texts, _BATCH)):
        plain = [text.text for text in batch if not text.from_template]
        templated = [text.text for text in batch if text.from_template]
        encodings = {
            False: encoded(plain, special=False, beside=frame),
            True: encoded(templated, special=True, beside=0),
        }
        for text in batch:
            tokens = next(encodings[text.from_template])
            # Templates write their own BOS. The tokens around a plain text are never truncated.
            before, after = ((), ()) if text.from_template else (vocabulary.before, vocabulary.after)
            if framed := [*before, *tokens, *after]:
                yield Document(framed, text.domain)


def _exactly(share: Share) -> list[Document]:
    documents = list(itertools.islice(share.documents, share.rows))
    if len(documents) < share.rows:
        raise TooFewRowsError(share, len(documents), "samples")
    return documents


class TooFewRowsError(UsageError):
    """Raised if a dataset has too little text for its share of the rows."""

    def __init__(self, share: Share, found: int, what: str) -> None:
        fix = f"add more data, or request {found} {what}" if found else "use data that contains text"
        super().__init__(f"only {found} of {share.rows} {what} available", where=f"data '{share.source}'", fix=fix)
        self.found = found
