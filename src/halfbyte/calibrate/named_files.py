"""Local files in place of a recipe's data sets: `--data news=articles.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.calibrate.datasets import CONVERSATIONS, FILES, TEXTS, records
from halfbyte.errors import UsageError

if TYPE_CHECKING:
    from halfbyte.recipe.decisions import Calibrate, Dataset, Recipe


def with_data(recipe: Recipe, pairs: Sequence[str], samples: int | None) -> Recipe:
    """Return the recipe with these files instead of its data sets, if any are given."""
    if not pairs:
        if samples is not None:
            raise UsageError("--samples counts samples of --data", fix="give --data too, or change the recipe's shares")
        return recipe
    if recipe.calibrate is None:
        raise UsageError(f"recipe '{recipe.name}' reads no data", where="--data", fix="leave it out")
    return replace(recipe, calibrate=replace_datasets(recipe.calibrate, pairs, samples))


def replace_datasets(calibrate: Calibrate, pairs: Sequence[str], samples: int | None = None) -> Calibrate:
    """Return the calibration with local files in place of its data sets.

    Each pair is `domain=path`, or `domain=path:column,column` where the columns cannot be guessed. Columns that are
    not named are those that the recipe gives for the domain, or else what such files usually have. The samples are
    split evenly over the files; a number of samples replaces the recipe's.
    """
    if not pairs:
        raise UsageError("no data is given", fix="give a domain and a file, as in news=articles.jsonl")
    total = calibrate.samples if samples is None else samples
    if total < len(pairs):
        what = f"{total} samples cannot be split over {len(pairs)} files"
        raise UsageError(what, fix="ask for more samples, or give fewer files")
    each, rest = divmod(total, len(pairs))
    found = [_named_file(pair, calibrate) | {"share": each + (at < rest)} for at, pair in enumerate(pairs)]
    return checked(calibrate.as_dict() | {"samples": total, "datasets": found})


def checked(keys: Mapping[str, Any]) -> Calibrate:
    """Return the calibration that these keys say, as strictly read as in a recipe."""
    from halfbyte.recipe import schema as recipe_schema  # noqa: PLC0415 - pydantic, which runs of a plan do without

    return recipe_schema.Calibrate.model_validate(keys).decided()


def _named_file(pair: str, calibrate: Calibrate) -> dict[str, Any]:
    """Return the keys of a data set that a pair names, all but its share."""
    domain, equals, source = pair.partition("=")
    if not (domain and equals and source):
        raise UsageError(f"'{pair}' is not a domain and a file", fix="write it as in news=articles.jsonl")
    if domain == "{}":
        what = f"'{pair}' names no column between its braces"
        raise UsageError(
            what, fix="name the column with the domains, as in {domain}=articles.jsonl, or give one domain"
        )
    columns: tuple[str, ...] = ()
    if not Path(source).exists() and ":" in source:
        source, _, names = source.rpartition(":")
        columns = tuple(name for name in names.split(",") if name)
    suffix = Path(source).suffix
    if suffix not in FILES:
        raise UsageError(f"'{source}' is not a file that is read here", fix=f"give one of {', '.join(FILES)}")
    if suffix == ".txt":
        return {"domain": domain, "source": source, "chat_template": False}
    chat = any(dataset.chat_template for dataset in calibrate.datasets)
    columns = columns or _guess(source, next((d for d in calibrate.datasets if d.domain == domain), None))
    first = next(records(source)).row
    conversation = all(isinstance(first.get(name), list) for name in columns) or len(columns) > 1
    return {"domain": domain, "source": source, "columns": columns, "chat_template": chat and conversation}


def _guess(source: str, like: Dataset | None) -> tuple[str, ...]:
    """Return the columns to read: the recipe's for this domain, or the usual ones."""
    first = next(records(source)).row
    if like is not None and like.columns and all(name in first for name in like.columns):
        return like.columns
    for name in (*CONVERSATIONS, *TEXTS):
        if name in first:
            return (name,)
    what = f"none of the columns {', '.join(first)} is known to hold text"
    raise UsageError(what, where=source, fix=f"name it, as in news={source}:{next(iter(first), 'column')}")
