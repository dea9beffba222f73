"""The YAML block at the top of the card, through huggingface_hub; a key that nothing states is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from halfbyte.publish.card.known import Known
from halfbyte.publish.card.reading import number, rows, texts, whole, words
from halfbyte.publish.card.source_card import short

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

OTHER = "other"
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")  # as the Hub names them
_TAG = re.compile(r"[\w.-]{1,60}", re.ASCII)
_FOUR_BIT = ("nvfp4", "mxfp4", "int4")


def front_matter(known: Known) -> ModelCardData:
    """Return what the Hub reads."""
    from huggingface_hub import ModelCardData  # noqa: PLC0415 - only a card needs it

    stated: dict[str, Any] = {
        "base_model": known.base_repository,
        "base_model_relation": "quantized" if known.base_repository and known.quantizes else None,
        **_license(known),
        "language": [tag for tag in _languages(known.front) if _TAG.fullmatch(tag)] or None,
        "library_name": _tag(known, "library_name"),
        "pipeline_tag": _tag(known, "pipeline_tag"),
        "quantized_by": known.quantized_by,
        "tags": list(tags(known)),
    }
    results = list(_results(known))
    if results:
        stated |= {"model_name": known.title, "eval_results": results}
    return ModelCardData(**{key: value for key, value in stated.items() if value is not None})


def _languages(front: Mapping[str, Any]) -> list[str]:
    return texts(front, "language") or [found for found in [words(front, "language")] if found]


def _tag(known: Known, key: str) -> str | None:
    found = words(known.front, key)
    return found if found and _TAG.fullmatch(found) else None


def _license(known: Known) -> dict[str, str | None]:
    found = known.license
    if found is None:
        return {}
    plain = _LICENSE.fullmatch(found) is not None
    name = known.license_name or (None if plain else found)
    return {"license": found if plain else OTHER, "license_name": name, "license_link": known.license_link}


def tags(known: Known) -> Iterator[str]:
    """Yield what the checkpoint is, by config and headers."""
    format = known.served.quantization.partition("-")[0]
    found = ["halfbyte", format, "4-bit" if format in _FOUR_BIT else None, words(known.block, "quant_method"),
             words(known.checkpoint.config, "model_type"), "mixture-of-experts" if known.model.experts else None,
             "pruned" if known.pruned else None]  # fmt: skip
    yield from (tag for tag in found if tag and _TAG.fullmatch(tag))


def _results(known: Known) -> Iterator[EvalResult]:
    """Yield a result for each task whose score is one: the metric that was chosen beforehand."""
    from huggingface_hub import EvalResult  # noqa: PLC0415

    for task in rows(known.get("eval"), "tasks"):
        name, primary, label = (words(task, key) for key in ("task", "primary", "label"))
        value = number(task, "candidate", "by_metric", primary or "", "value")
        if not name or not primary or value is None or label in (None, "ANOMALOUS"):
            continue
        metric, _, filter_name = primary.partition(",")
        shots = whole(task, "shots")
        yield EvalResult(
            task_type="text-generation",
            dataset_type=short(name) or name,
            dataset_name=short(name) or name,
            dataset_args=None if shots is None else {"num_few_shot": shots},
            metric_type=short(metric) or metric,
            metric_name=short(f"{metric} {filter_name}" if filter_name not in ("", "none") else metric),
            metric_value=round(value, 4),
        )
