"""Does the model call a tool when it should, and do its calls fit the declared schemas: as K2's vendor verifier asks.

    PYTHONPATH=src python -m training.tool_calls models/kimi-mini --out RUN        on a CPU in FP32: minutes

Two numbers of the verifier, on the test set of the domain `tools`. Trigger F1: of the turns with a call, against the
turns that should have one; the verifier takes the official API's decision for the truth, here the generator knows it.
Schema accuracy: of the turns with a call, how many have only calls that are whole, to a declared function, with
arguments that fit its JSON schema. Neither asks for the right values: the score of the domain does.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from training import compare, make_sets, score, variants
from training.domains import tools
from training.sample import Item


def quality(items: Sequence[Item], outputs: Sequence[str]) -> dict[str, Any]:
    """Return both numbers and the counts that they come from."""
    pairs = list(zip(items, outputs, strict=True))
    called = [(item, output) for item, output in pairs if tools.triggered(output)]
    wanted = sum(tools.should_trigger(item) for item in items)
    hits = sum(tools.should_trigger(item) for item, _ in called)
    valid = sum(tools.valid(item, output) for item, output in called)
    return {
        "items": len(items),
        "should_call": wanted,
        "called": len(called),
        "called_rightly": hits,
        "valid": valid,
        "right": sum(score.is_right(tools, item, output) for item, output in pairs),
        "schema_accuracy": valid / len(called) if called else 0.0,
        "precision": hits / len(called) if called else 0.0,
        "recall": hits / wanted if wanted else 0.0,
        "f1": 2 * hits / (wanted + len(called)) if wanted + len(called) else 0.0,
    }


def main() -> None:
    """Answer the test set, print the numbers, write tools.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkpoint, or a training run")
    parser.add_argument("--out", type=Path, help="a folder for tools.json")
    given = parser.parse_args()
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)  # before any work
    device = "cuda" if torch.cuda.is_available() else "cpu"
    items = make_sets.test_set(tools.DOMAIN)
    outputs = score.answers(compare.model_of(variants.as_released(given.folder), device), items)
    found = quality(items, outputs) | {
        "device": torch.cuda.get_device_name() + ", BF16" if device == "cuda" else f"{platform.machine()} CPU, FP32",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "torch": torch.__version__,
    }
    print(json.dumps(found, indent=1))
    if given.out:
        (given.out / "tools.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
