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

from benchmarks.degeneracy import held_out_loops, held_out_sound
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
    return {**_rate(hits.total(), of.total()), "families": {family: [hits[family], of[family]] for family in of}}


def _rate(found: int, texts: int) -> dict:
    return {"texts": texts, "found": found, "share": found / texts, "interval": wilson(found, texts)}


def of_new_families(found: dict, label: str) -> dict:
    """Return the rate over the families that only the held-out part has."""
    names = (held_out_loops if label == "loops" else held_out_sound).FAMILIES
    rows = [found["families"][name] for name in names]
    return _rate(sum(hits for hits, _ in rows), sum(of for _, of in rows))


def by_repeats(each: int, part: str = "held-out") -> dict[str, dict[str, list[int]]]:
    """Return how many loops are found that were cut after so many repeats, knowing nothing and knowing the kind."""
    table: dict[str, dict[str, list[int]]] = {}
    for unit in held_out_loops.UNITS:
        for repeats in held_out_loops.REPEATS:
            texts = held_out_loops.cut_loops(part, each, repeats, unit)
            row = [measured(texts, told=told)["found"] for told in (False, True)]
            table.setdefault(unit, {})[str(repeats)] = [*row, len(texts)]
    return table


def measure(part: str, each: int = EACH) -> dict:
    bad, good = loops(part, each), sound(part, each)
    started = time.process_time()
    found = {
        name: {"loops": measured(bad, told=told), "sound": measured(good, told=told)}
        for name, told in (("any", False), ("told", True))
    }
    spent = time.process_time() - started
    characters = 2 * sum(len(one.text) for one in [*bad, *good])
    if part == "held-out":
        for one in found.values():
            one["new"] = {label: of_new_families(one[label], label) for label in ("loops", "sound")}
        found["by_repeats"] = by_repeats(each)
    return {
        "part": part,
        **found,
        "microseconds_per_1000_characters": spent * 1e9 / characters,
    }


def as_table(found: dict) -> str:
    lines = [f"Part: {found['part']}. Intervals are Wilson's, 95 %.", ""]
    lines += [
        "| the detector | loops found | sound texts called loops | precision at equal numbers |",
        "|---|---|---|---|",
    ]
    for name, said in (("any", "knows nothing of the text"), ("told", "knows the kind of text")):
        lines.append(_row(said, found[name]))
        if "new" in found[name]:
            lines.append(_row(f"{said}, new families only", found[name]["new"]))
    lines += _repeats_table(found.get("by_repeats", {}))
    lines += ["", "| family | text | found, knowing nothing | found, knowing the kind |", "|---|---|---|---|"]
    for label in ("loops", "sound"):
        told = found["told"][label]["families"]
        for family, (hits, of) in found["any"][label]["families"].items():
            lines.append(
                f"| {family} | {'loop' if label == 'loops' else label} | {hits} of {of} | {told[family][0]} of {of} |"
            )
    return "\n".join(lines)


def _row(said: str, rates: dict) -> str:
    bad, good = rates["loops"], rates["sound"]
    precision = bad["share"] / (bad["share"] + good["share"])
    return f"| {said} | {_share(bad)} | {_share(good)} | {100 * precision:.2f} % |"


def _repeats_table(table: dict) -> list[str]:
    """Loops of few repeats are not part of the rates: letters and forms have as many."""
    if not table:
        return []
    heads = list(held_out_loops.REPEATS)
    lines = ["", "Found when cut after so many repeats, knowing nothing / knowing the kind:", ""]
    lines += ["| repeated | " + " | ".join(map(str, heads)) + " |", "|---" * (len(heads) + 1) + "|"]
    for unit, row in table.items():
        cells = [f"{nothing} / {kind} of {of}" for nothing, kind, of in row.values()]
        lines.append(f"| {unit} | " + " | ".join(cells) + " |")
    return lines


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
