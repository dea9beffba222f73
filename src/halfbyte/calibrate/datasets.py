"""Stream the texts of a dataset from a file or the Hub.

Samples are read lazily, so that 512 samples cost 512 samples regardless of the dataset's size. With a seed, samples are
shuffled in windows of 10,000; without one they keep the stored order. Samples without text are skipped.

A dataset belongs to one domain. If a column names each sample's domain, write that column in braces as the domain:
`{domain}` collects statistics by the column `domain`.

`--data news=articles.jsonl` replaces a recipe's datasets with local files (`with_data`).
"""

from __future__ import annotations

import importlib
import itertools
import json
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from halfbyte.calibrate.chat import joined
from halfbyte.checkpoint.untrusted_files import parsed
from halfbyte.errors import CheckpointError, HalfbyteError, MachineError, UsageError

if TYPE_CHECKING:
    from halfbyte.calibrate.chat import ChatTemplate
    from halfbyte.recipe.decisions import Calibrate, Dataset, Recipe

WINDOW = 10_000  # samples shuffled together, which bounds memory and reading
FILES = (".jsonl", ".parquet", ".txt")
_BATCH = 256  # samples decoded from a Parquet file at a time
_ROLES = ("user", "assistant")  # alternating roles of several text columns
_SPEAKERS = {"human": "user", "gpt": "assistant"}  # roles in conversations of {from, value}
CONVERSATIONS = ("messages", "conversations")
TEXTS = ("text", "article", "content")
QUESTIONS = (("question", "answer"), ("prompt", "response"), ("prompt", "completion"), ("instruction", "output"))
_TOOLS = "tools"
_TYPE_NAMES = {
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "NoneType": "null",
    "dict": "an object",
    "list": "a list",
    "str": "a text",
}


@dataclass(frozen=True, slots=True)
class Text:
    """One sample."""

    text: str
    domain: str
    from_template: bool  # if so, special tokens in the text are tokenized as such


@dataclass(frozen=True, slots=True)
class _Sample:
    """A stored sample and its location for error messages."""

    row: Mapping[str, Any]
    where: str


def read_texts(dataset: Dataset, seed: int | None = None, template: ChatTemplate | None = None) -> Iterator[Text]:
    """Yield the texts of a dataset, shuffled if there is a seed."""
    if dataset.chat_template and template is None:
        what, fix = "this checkpoint has no chat template", "set chat_template to false"
        raise CheckpointError(what, where=f"dataset '{dataset.source}'", fix=fix)
    samples = _samples(dataset)
    for sample in samples if seed is None else _shuffled(samples, seed):
        text = _text(sample, dataset, template)
        if text:
            yield Text(text, _domain(sample, dataset), dataset.chat_template)


def _shuffled(samples: Iterator[_Sample], seed: int) -> Iterator[_Sample]:
    """Shuffle window by window."""
    # Python guarantees a stable sequence per seed only for random(), not for shuffle().
    source = random.Random(seed)
    while window := list(itertools.islice(samples, WINDOW)):
        keys = [source.random() for _ in window]
        for at in sorted(range(len(window)), key=keys.__getitem__):
            yield window[at]


def _samples(dataset: Dataset) -> Iterator[_Sample]:
    if Path(dataset.source).suffix in FILES:
        return records(dataset.source, _columns(dataset))
    if Path(dataset.source).is_file():
        what = f"unsupported file type; supported are {', '.join(FILES)}"
        raise UsageError(what, where=dataset.source, fix="convert it, to .jsonl for example")
    return _from_hub(dataset)


def _columns(dataset: Dataset) -> set[str]:
    """Return all columns to read, including optional ones."""
    named = _domain_column(dataset)
    return {*(dataset.columns or ()), *([named] if named else []), *([_TOOLS] if dataset.chat_template else [])}


def records(source: str, columns: set[str] | None = None) -> Iterator[_Sample]:
    """Yield the records of a file; raise UsageError if it is missing or empty."""
    path = Path(source)
    if not path.is_file():
        raise UsageError("file not found", where=source, fix="check the path")
    read = {".jsonl": _from_jsonl, ".txt": _from_lines}.get(path.suffix)
    records = _from_parquet(path, columns) if read is None else read(path)
    first = next(records, None)
    if first is None:
        raise UsageError("the file is empty", where=source, fix="pass a file with samples")
    return itertools.chain([first], records)


def _from_lines(path: Path) -> Iterator[_Sample]:
    """Yield the lines of a text file, one sample each."""
    for where, line in _lines(path):
        try:
            yield _Sample({"": line.decode().rstrip("\r\n")}, where)
        except UnicodeDecodeError as error:
            raise UsageError(f"invalid UTF-8: {error.reason}", where=where, fix="save the file as UTF-8") from error


def _from_jsonl(path: Path) -> Iterator[_Sample]:
    for where, line in _lines(path):
        try:
            row = parsed(line)
        except ValueError as error:
            raise UsageError(f"invalid JSON: {error}", where=where, fix="fix or remove the line") from error
        if not isinstance(row, dict):
            what = f"expected a JSON object, found {_TYPE_NAMES[type(row).__name__]}"
            raise UsageError(what, where=where, fix="write each sample as {column: value}")
        yield _Sample(cast("dict[str, Any]", row), where)


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each non-empty line and its location."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{path}, line {number}", line


def _from_parquet(path: Path, columns: set[str] | None) -> Iterator[_Sample]:
    parquet = _library("pyarrow.parquet", "pyarrow", f"{path.name} is a Parquet file")
    with _raising(
        lambda error: UsageError(f"not a valid Parquet file: {error}", where=str(path), fix="download it again")
    ):
        file = parquet.ParquetFile(path)
        stored: list[str] = file.schema_arrow.names
        # Decode only the requested columns. If one is missing, decode all, so that the error can list the columns.
        known = columns is not None and columns - {_TOOLS} <= set(stored)
        decoded = [name for name in stored if name in columns] if columns is not None and known else stored
        number = 0
        for batch in file.iter_batches(batch_size=_BATCH, columns=decoded):
            for row in batch.to_pylist():
                number += 1
                yield _Sample(row, f"{path}, row {number}")


def _from_hub(dataset: Dataset) -> Iterator[_Sample]:
    """Stream the rows of a dataset on the Hub."""
    local = f"use a local file: --data {dataset.domain}=path"
    library = _library("datasets", "datasets", f"'{dataset.source}' is a dataset on the Hub", local)
    place = f"dataset '{dataset.source}', split '{dataset.split}'"
    with _raising(lambda error: _hub_error(error, place, local)):
        stream = library.load_dataset(dataset.source, name=dataset.subset, split=dataset.split, streaming=True)
        for number, row in enumerate(stream, 1):
            yield _Sample(row, f"{place}, row {number}")


def _hub_error(error: Exception, place: str, local: str) -> HalfbyteError:
    message = (str(error).splitlines() or [type(error).__name__])[0]
    if type(error).__name__ == "DatasetNotFoundError":
        fix = "check the name, accept its terms on the Hub and log in, or " + local
        return UsageError(f"not found on the Hub: {message}", where=place, fix=fix)
    if isinstance(error, ValueError | TypeError | KeyError):
        return UsageError(f"cannot load the dataset: {message}", where=place, fix="check subset and split")
    return MachineError(f"the Hub cannot be reached: {message}", where=place, fix="connect this machine, or " + local)


@contextmanager
def _raising(convert: Callable[[Exception], HalfbyteError]) -> Generator[None]:
    """Convert any exception of a library into a HalfbyteError."""
    try:
        yield
    except Exception as error:
        raise convert(error) from error


def _library(module: str, package: str, reason: str, instead: str = "") -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        what = f"{reason}, but the package '{package}' is not installed"
        raise MachineError(what, fix=f"pip install {package}" + (f", or {instead}" * bool(instead))) from error


def _text(sample: _Sample, dataset: Dataset, template: ChatTemplate | None) -> str:
    """Return a sample's text; an empty string if its columns are empty."""
    if dataset.columns is None:
        return sample.row[""]
    values = [_value(sample, name) for name in dataset.columns]
    if len(values) == 1 and (values[0] is None or isinstance(values[0], str)):
        return _plain(values[0], sample, dataset)
    messages = _messages(values, sample, dataset.columns)
    if not messages:
        return ""
    if template is not None and dataset.chat_template:
        return template.text(messages, _tools(sample))
    return joined(messages)


def _value(sample: _Sample, name: str) -> Any:
    if name not in sample.row:
        what = f"no column '{name}'; the columns are {', '.join(sample.row) or 'empty'}"
        raise UsageError(what, where=sample.where, fix="name the right columns, as in news=articles.jsonl:article")
    return sample.row[name]


def _plain(text: str | None, sample: _Sample, dataset: Dataset) -> str:
    if text and dataset.chat_template:
        what = "a chat template requires messages, found plain text"
        raise UsageError(what, where=sample.where, fix="set chat_template to false")
    return text or ""


def _messages(values: Sequence[Any], sample: _Sample, columns: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return a conversation: messages from one column, or alternating turns from several text columns."""
    if len(values) == 1:
        if not isinstance(values[0], list):
            raise _wrong(columns[0], values[0], "a text or a list of messages", sample)
        return [_message(value, columns[0], sample) for value in cast("list[Any]", values[0])]
    for value, name in zip(values, columns, strict=True):
        if value is not None and not isinstance(value, str):
            raise _wrong(name, value, "a text", sample)
    if not any(values):
        return []
    return [{"role": _ROLES[at % 2], "content": value or ""} for at, value in enumerate(values)]


def _message(value: Any, column: str, sample: _Sample) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(column, value, "a list of messages", sample, inside="a list with ")
    message = cast("dict[str, Any]", value)
    if "role" in message:
        return message
    if "from" in message and "value" in message:
        return {"role": _SPEAKERS.get(message["from"], message["from"]), "content": message["value"]}
    what = f"a message in '{column}' has no role; its keys are {', '.join(message) or 'empty'}"
    raise UsageError(what, where=sample.where, fix="write messages as {role, content}")


def _wrong(column: str, value: Any, expected: str, sample: _Sample, inside: str = "") -> UsageError:
    kind = type(value).__name__
    what = f"'{column}' is {inside}{_TYPE_NAMES.get(kind, kind)}, not {expected}"
    return UsageError(what, where=sample.where, fix="name the columns that contain the text")


def _tools(sample: _Sample) -> list[Any] | None:
    """Return a conversation's tools, which tables store as JSON."""
    tools = sample.row.get(_TOOLS)
    if isinstance(tools, str):
        try:
            tools = json.loads(tools or "null")
        except ValueError as error:
            what = f"'{_TOOLS}' is not valid JSON: {error}"
            raise UsageError(what, where=sample.where, fix="write a list of tools") from error
    return cast("list[Any]", tools) if isinstance(tools, list) and tools else None


def _domain_column(dataset: Dataset) -> str | None:
    inside = dataset.domain.startswith("{") and dataset.domain.endswith("}")
    return dataset.domain[1:-1] if inside else None


def _domain(sample: _Sample, dataset: Dataset) -> str:
    """Return the domain of a sample."""
    column = _domain_column(dataset)
    if column is None:
        return dataset.domain
    domain = _value(sample, column)
    if isinstance(domain, str) and domain:
        return domain
    kind = "empty" if domain == "" else _TYPE_NAMES.get(type(domain).__name__, type(domain).__name__)
    what = f"'{column}' is {kind}, not a domain name"
    raise UsageError(
        what, where=sample.where, fix="set a domain in every sample, or pass one for all: --data news=file"
    )


def with_data(recipe: Recipe, pairs: Sequence[str], samples: int | None) -> Recipe:
    """Return the recipe with its datasets replaced by these files, if any."""
    if not pairs:
        if samples is not None:
            raise UsageError("--samples requires --data", fix="pass --data too, or change the recipe's shares")
        return recipe
    if recipe.calibrate is None:
        raise UsageError(f"recipe '{recipe.name}' does not use calibration data", where="--data", fix="remove --data")
    return replace(recipe, calibrate=replace_datasets(recipe.calibrate, pairs, samples))


def replace_datasets(calibrate: Calibrate, pairs: Sequence[str], samples: int | None = None) -> Calibrate:
    """Return the calibration with its datasets replaced by local files.

    Each pair is `domain=path`, or `domain=path:column,column` if the columns cannot be inferred. Without a domain, the
    file's stem is the domain. The default columns are the recipe's for that domain, or else common column names. The
    samples are split evenly over the files. `samples` overrides the recipe's number.
    """
    if not pairs:
        raise UsageError("no data specified", fix="pass a domain and a file, as in news=articles.jsonl")
    total = calibrate.samples if samples is None else samples
    if total < len(pairs):
        what = f"{total} samples cannot be split over {len(pairs)} files"
        raise UsageError(what, fix="request more samples, or pass fewer files")
    each, rest = divmod(total, len(pairs))
    datasets = [_named_file(pair, calibrate) | {"share": each + (at < rest)} for at, pair in enumerate(pairs)]
    return checked(calibrate.as_dict() | {"samples": total, "datasets": datasets})


def checked(keys: Mapping[str, Any]) -> Calibrate:
    """Validate the keys like a recipe's `calibrate` block."""
    from halfbyte.recipe import schema as recipe_schema  # noqa: PLC0415 - keeps pydantic out of runs from a plan

    return recipe_schema.Calibrate.model_validate(keys).decided()


def _named_file(pair: str, calibrate: Calibrate) -> dict[str, Any]:
    """Return the dataset keys for a `domain=path` pair, except the share."""
    domain, equals, source = pair.partition("=")
    if not equals and _stem(pair):
        domain, source = _stem(pair), pair  # a bare file: its stem is the domain
    if not (domain and source):
        raise UsageError(f"'{pair}' is not a DOMAIN=FILE pair", fix="write it as in news=articles.jsonl")
    if domain == "{}":
        what = f"'{pair}' has no column name between its braces"
        raise UsageError(
            what, fix="name the column with the domains, as in {domain}=articles.jsonl, or pass one domain"
        )
    columns: tuple[str, ...] = ()
    if not Path(source).exists() and ":" in source:
        source, _, names = source.rpartition(":")
        columns = tuple(name for name in names.split(",") if name)
    suffix = Path(source).suffix
    if suffix not in FILES:
        raise UsageError(f"unsupported file type '{source}'", fix=f"pass a file with one of {', '.join(FILES)}")
    if suffix == ".txt":
        return {"domain": domain, "source": source, "chat_template": False}
    chat = any(dataset.chat_template for dataset in calibrate.datasets)
    like = next((dataset for dataset in calibrate.datasets if dataset.domain == domain), None)
    columns = columns or _guess(source, domain, like)
    first = next(records(source)).row
    conversation = all(isinstance(first.get(name), list) for name in columns) or len(columns) > 1
    return {"domain": domain, "source": source, "columns": columns, "chat_template": chat and conversation}


def _stem(pair: str) -> str:
    """Return the stem of a supported file, ignoring `:columns`; an empty string otherwise."""
    path = Path(pair if Path(pair).exists() else pair.partition(":")[0])
    return path.stem if path.suffix in FILES else ""


def _guess(source: str, domain: str, like: Dataset | None) -> tuple[str, ...]:
    """Return the columns to read: the recipe's for this domain, or common column names."""
    first = next(records(source)).row
    if like is not None and like.columns and all(name in first for name in like.columns):
        return like.columns
    for name in (*CONVERSATIONS, *TEXTS):
        if name in first:
            return (name,)
    for pair in QUESTIONS:
        if all(isinstance(first.get(name), str) for name in pair):
            return pair
    texts = [name for name, value in first.items() if isinstance(value, str)]
    longest = max(texts, key=lambda name: len(str(first[name])), default="COLUMN")
    what = f"cannot infer the text column from {', '.join(first)}"
    raise UsageError(what, where=source, fix=f"name the column, as in {domain}={source}:{longest}")
