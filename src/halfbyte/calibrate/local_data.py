"""Replace a recipe's datasets with local files: `--data news=articles.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.calibrate.datasets import CONVERSATIONS, FILES, QUESTIONS, TEXTS, records
from halfbyte.errors import UsageError

if TYPE_CHECKING:
    from halfbyte.recipe.decisions import Calibrate, Dataset, Recipe


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
