"""How often the loop detector is wrong, on texts that its limits were not chosen on.

python -m benchmarks.degeneracy.measure                    the held-out part
python -m benchmarks.degeneracy.measure --part tune        the part that the limits were chosen on
python -m benchmarks.degeneracy.measure --write            and write benchmarks/results/degeneracy_202611.{json,md}
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from benchmarks.degeneracy.loops import loops
from benchmarks.degeneracy.sound import sound
from benchmarks.degeneracy.sources import Labelled

from halfbyte.validate.probe.degeneracy.watch import find_loop
from halfbyte.validate.statistics.proportions import wilson

RESULTS = Path(__file__).parents[1] / "results" / "degeneracy_202611"
EACH = 75


def measured(texts: list[Labelled], *, told: bool) -> dict:
    """Count what was found; `told`: the detector knows the kind of text, as a probe does and a proxy does not."""
    found = [find_loop(one.text, one.kind if told else "any") is not None for one in texts]
    hits, of = Counter(), Counter()
    for one, hit in zip(texts, found, strict=True):
        of[one.family] += 1
        hits[one.family] += hit
    return {
        "texts": len(texts),
        "found": sum(found),
        "share": sum(found) / len(texts),
        "interval": wilson(sum(found), len(texts)),
        "families": {family: [hits[family], of[family]] for family in of},
    }


def measure(part: str, each: int = EACH) -> dict:
    bad, good = loops(part, each), sound(part, each)
    started = time.process_time()
    found = {
        name: {"loops": measured(bad, told=told), "sound": measured(good, told=told)}
        for name, told in (("any", False), ("told", True))
    }
    characters = 2 * sum(len(one.text) for one in [*bad, *good])
    return {
        "part": part,
        **found,
        "microseconds_per_1000_characters": (time.process_time() - started) * 1e9 / characters,
    }


def as_table(found: dict) -> str:
    lines = [f"Part: {found['part']}. Intervals are Wilson's, 95 %.", ""]
    lines += [
        "| the detector | loops found | sound texts called loops | precision at equal numbers |",
        "|---|---|---|---|",
    ]
    for name, said in (("any", "knows nothing of the text"), ("told", "knows the kind of text")):
        bad, good = found[name]["loops"], found[name]["sound"]
        precision = bad["share"] / (bad["share"] + good["share"])
        lines.append(f"| {said} | {_share(bad)} | {_share(good)} | {100 * precision:.2f} % |")
    lines += ["", "| family | text | found, knowing nothing | found, knowing the kind |", "|---|---|---|---|"]
    for label in ("loops", "sound"):
        told = found["told"][label]["families"]
        for family, (hits, of) in found["any"][label]["families"].items():
            lines.append(
                f"| {family} | {'loop' if label == 'loops' else label} | {hits} of {of} | {told[family][0]} of {of} |"
            )
    return "\n".join(lines)


def _share(one: dict) -> str:
    low, high = one["interval"]
    return f"{one['found']} of {one['texts']}: {100 * one['share']:.2f} % ({100 * low:.2f}-{100 * high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="held-out", choices=("tune", "held-out"))
    parser.add_argument("--each", type=int, default=EACH)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.part, asked.each)
    print(as_table(found))
    print(f"\n{found['microseconds_per_1000_characters']:.0f} microseconds per 1,000 characters")
    if asked.write:
        RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(f"# How often the loop detector is wrong\n\n{as_table(found)}\n")


if __name__ == "__main__":
    main()
