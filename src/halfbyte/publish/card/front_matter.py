"""YAML front matter of the card, built with huggingface_hub. Unknown keys are omitted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.fields import texts, words
from halfbyte.formats.registry import FORMATS
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.source_card import short

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

OTHER = "other"
_VLLM, _NOT_IN_TRANSFORMERS = "vllm", ("modelopt",)
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")  # as the Hub names them
_TAG = re.compile(r"[\w.-]{1,60}", re.ASCII)
_FOUR_BITS = 4


def front_matter(card: CardFacts) -> ModelCardData:
    """Return the card's metadata for the Hub."""
    from huggingface_hub import ModelCardData  # noqa: PLC0415 - only a card needs it

    fields: dict[str, Any] = {
        "base_model": card.base_repository,
        "base_model_relation": _relation(card) if card.base_repository else None,
        **_license(card),
        "language": [tag for tag in _languages(card.front) if _TAG.fullmatch(tag)] or None,
        "library_name": _library(card),
        "pipeline_tag": _tag(card, "pipeline_tag"),
        "quantized_by": card.quantized_by,
        "tags": list(tags(card)),
    }
    results = list(_results(card))
    if results:
        fields |= {"model_name": card.title, "eval_results": results}
    return ModelCardData(**{key: value for key, value in fields.items() if value is not None})


def _relation(card: CardFacts) -> str:
    """Return the Hub's relation to the base model: adapter, merge, quantized or finetune.

    The same weights in another number format are "quantized". A model that was only pruned is a "finetune", the Hub's
    default for changed weights.
    """
    return "finetune" if card.pruned and not card.quantizes else "quantized"


def _library(card: CardFacts) -> str | None:
    """Return the library of the source's card, or vLLM if that library cannot load this checkpoint.

    transformers has no quantizer for ModelOpt checkpoints, so the Hub would show a snippet that fails.
    """
    method = words(card.block, "quant_method")
    return _VLLM if method in _NOT_IN_TRANSFORMERS else _tag(card, "library_name")


def _languages(front: Mapping[str, Any]) -> list[str]:
    return texts(front, "language") or [language for language in [words(front, "language")] if language]


def _tag(card: CardFacts, key: str) -> str | None:
    value = words(card.front, key)
    return value if value and _TAG.fullmatch(value) else None


def _license(card: CardFacts) -> dict[str, str | None]:
    license = card.license
    if license is None:
        return {}
    plain = _LICENSE.fullmatch(license) is not None
    name = card.license_name or (None if plain else license)
    return {"license": license if plain else OTHER, "license_name": name, "license_link": card.license_link}


def tags(card: CardFacts) -> Iterator[str]:
    """Yield the card's tags, from config and headers."""
    quantization = card.served.quantization
    bits = next((row.element.bits for row in FORMATS.values() if row.served_as == quantization), None)
    candidates = ["halfbyte", quantization.partition("-")[0], "4-bit" if bits == _FOUR_BITS else None,
             words(card.block, "quant_method"), words(card.checkpoint.config, "model_type"),
             "mixture-of-experts" if card.model.experts else None, "pruned" if card.pruned else None]  # fmt: skip
    yield from (tag for tag in candidates if tag and _TAG.fullmatch(tag))


def _results(card: CardFacts) -> Iterator[EvalResult]:
    """Yield one result per task with a valid score on its primary metric."""
    from huggingface_hub import EvalResult  # noqa: PLC0415

    evaluation = card.get(Evaluation)
    for task in evaluation.tasks if evaluation else ():
        score = task.candidate.by_metric.get(task.primary)
        if score is None or task.label == "ANOMALOUS":
            continue
        name, shots = task.task, task.shots
        metric, _, filter_name = task.primary.partition(",")
        yield EvalResult(
            task_type="text-generation",
            dataset_type=short(name) or name,
            dataset_name=short(name) or name,
            dataset_args=None if shots is None else {"num_few_shot": shots},
            metric_type=short(metric) or metric,
            metric_name=short(f"{metric} {filter_name}" if filter_name not in ("", "none") else metric),
            metric_value=round(score.value, 4),
        )
