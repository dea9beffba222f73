"""What the scales of activations were measured on, and how many tokens each expert saw of it."""

from __future__ import annotations

from typing import Any

from halfbyte.publish.card.figures import counted, figure
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, code, phrase, table
from halfbyte.publish.card.reading import items, mapping, rows, whole, words
from halfbyte.publish.card.sections.reproduction import source_of_data


def calibrates(known: Known) -> bool:
    """Whether the recipe that the weights were written by reads data."""
    return bool(mapping(known.plan, "calibration") or mapping(known.recipe, "calibrate"))


def facts(known: Known) -> dict[str, Any]:
    """Return how it was calibrated, and the coverage."""
    if not calibrates(known):
        return {"calibrated": False, "planned": known.get("plan") is not None, "missing": known.missing("plan")
                if known.get("plan") is None else None}  # fmt: skip
    coverage = known.get("coverage")
    return {
        "calibrated": True,
        "how": table(["", ""], _how(known)),
        "coverage": table(["", ""], _coverage(known)) if coverage else None,
        "missing": known.missing("coverage") if coverage is None else None,
        "layers": table(
            ["Layer", "Fewest tokens", "Median", "Experts that saw none", "Backstopped"],
            [[counted(row, "layer"), counted(row, "fewest"), figure(row, "median", digits=6),
              len(items(row, "unseen")), len(items(row, "backstopped"))] for row in _worst_layers(known)],
        ) if coverage else None,
    }  # fmt: skip


def _how(known: Known) -> list[tuple[str, Any]]:
    found, asked = mapping(known.plan, "calibration"), mapping(known.recipe, "calibrate")
    tokens = [f"{domain} {counted(number)}" for domain, number in mapping(found, "domains").items()]
    size = [counted(one) for one in items(found, "rows")]
    return [
        ("Data", Markdown(", ".join(source_of_data(known))) or None),
        ("Rows", phrase("{} of {} tokens, {}", *(size if len(size) == 2 else (None, None)), words(asked, "rows"))),  # noqa: PLR2004
        ("Tokens by domain", ", ".join(tokens) or None),
        ("Hash of the tokens", code(words(found, "tokens_sha256") or "not stated")),
        ("Hidden states", phrase("{} weights, {}", words(asked, "propagate"), words(found, "dtype"))),
        ("Scale of inputs", phrase("one for each {}", words(known.recipe, "quantize", "input_scale", "per"))),
    ]


def _coverage(known: Known) -> list[tuple[str, Any]]:
    found = known.get("coverage") or {}
    return [
        ("MoE layers", counted(found, "moe_layers")),
        ("Fewest tokens of an expert", counted(found, "fewest_tokens")),
        ("Median tokens of an expert", figure(found, "median_tokens", digits=6)),
        ("Experts that saw no token", counted(found, "unseen_experts")),
        ("Experts with the backstop's scale", counted(found, "backstopped_experts")),
    ]


def _worst_layers(known: Known) -> list[Any]:
    """Return the five layers whose experts saw fewest."""
    found = [row for row in rows(known.get("coverage"), "layers") if whole(row, "fewest") is not None]
    return sorted(found, key=lambda row: (whole(row, "fewest") or 0, whole(row, "layer") or 0))[:5]
