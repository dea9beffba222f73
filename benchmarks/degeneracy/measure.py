"""How often the loop detector is wrong, on texts that its limits were not chosen on.

python -m benchmarks.degeneracy.measure                    the held-out part
python -m benchmarks.degeneracy.measure --part tune        the part that the limits were chosen on
python -m benchmarks.degeneracy.measure --write            and write benchmarks/results/degeneracy_202611.{json,md}
python -m benchmarks.degeneracy.measure --cut [--part tune]      texts that the token limit cut, before and after the
                                                                 detector knows it; --write: degeneracy_cut_202611
"""

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmarks.degeneracy import cut_at_limit, held_out_loops, held_out_sound
from benchmarks.degeneracy.loops import loops
from benchmarks.degeneracy.sound import sound
from benchmarks.degeneracy.sources import Labelled

from halfbyte.degeneracy.watch import find_loop
from halfbyte.statistics.proportions import wilson

RESULTS = Path(__file__).parents[1] / "results" / "degeneracy_202611"
CUT_RESULTS = RESULTS.with_name("degeneracy_cut_202611")
EACH = 75


def measured(texts: list[Labelled], *, told: bool, cut: bool = False) -> dict:
    """Count the loops found.

    `told`: the detector knows the kind of text, as a probe does and a proxy does not. `cut`: it knows that the token
    limit ended the text.
    """
    found = [find_loop(one.text, one.kind if told else "any", cut=cut) is not None for one in texts]
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


def measure_cut(part: str, each: int = EACH) -> dict:
    """Measure texts that the token limit cut, without and with the knowledge that it did."""
    bad = list(cut_at_limit.cut_loops(part, each))
    sets = {
        "loops": [one for one, _ in bad],
        "healthy": cut_at_limit.cut_healthy(part, each),
        "healthy, older families": cut_anywhere(sound(part, each)),
    }
    found: dict = {"part": part, "each": each, "sets": {}, "by_repeats": {}}
    for name, told in (("any", False), ("told", True)):
        for cut in (False, True):
            row = {label: measured(texts, told=told, cut=cut) for label, texts in sets.items()}
            found["sets"][f"{name} {'cut' if cut else 'whole'}"] = row
            for repeats in range(cut_at_limit.REPEATS[0], cut_at_limit.REPEATS[1] + 1):
                texts = [one for one, copies in bad if copies == repeats]
                families = measured(texts, told=told, cut=cut)["families"]
                found["by_repeats"].setdefault(str(repeats), {})[f"{name} {'cut' if cut else 'whole'}"] = families
    return found


def cut_anywhere(texts: list[Labelled], seed: int = 0) -> list[Labelled]:
    """Return each text cut at any character after its first third."""
    rng = random.Random(seed)
    return [replace(one, text=one.text[: rng.randint(len(one.text) // 3, len(one.text))]) for one in texts]


def as_cut_table(found: dict) -> str:
    sets = found["sets"]
    lines = [f"Part: {found['part']}. Intervals are Wilson's, 95 %.", ""]
    labels = list(sets["any cut"])
    lines += ["| the detector | " + " | ".join(labels) + " |", "|---" * (len(labels) + 1) + "|"]
    said = {"any": "kind of text unknown", "told": "kind of text known"}
    for name, row in sets.items():
        kind, cut = name.split()
        knows = "told that the limit cut it" if cut == "cut" else "not told (before)"
        lines.append(f"| {said[kind]}, {knows} | " + " | ".join(_share(row[label]) for label in labels) + " |")
    lines += ["", "Found after so many whole copies, kind of text known, before / after:", ""]
    repeats = list(found["by_repeats"])
    lines += ["| family | " + " | ".join(repeats) + " |", "|---" * (len(repeats) + 1) + "|"]
    for family in sets["any cut"]["loops"]["families"]:
        cells = []
        for count in repeats:
            row = found["by_repeats"][count]
            before, after = row["told whole"][family], row["told cut"][family]
            cells.append(f"{before[0]} / {after[0]} of {after[1]}")
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    lines += ["", "Healthy texts called loops, told that the limit cut them:", ""]
    for label in labels[1:]:
        for name in ("any cut", "told cut"):
            row = sets[name][label]["families"]
            alarms = ", ".join(f"{family} {hits} of {of}" for family, (hits, of) in row.items() if hits) or "none"
            lines.append(f"- {label}, {said[name.split()[0]]}: {alarms}")
    return "\n".join(lines)


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
    parser.add_argument("--cut", action="store_true")
    asked = parser.parse_args()
    if asked.cut:
        cut = measure_cut(asked.part, asked.each)
        print(as_cut_table(cut))
        if asked.write:
            CUT_RESULTS.with_suffix(".json").write_text(json.dumps(cut, indent=1) + "\n")
            title = "# Loops and healthy texts that the token limit cut"
            CUT_RESULTS.with_suffix(".md").write_text(f"{title}\n\n{as_cut_table(cut)}\n")
        return
    found = measure(asked.part, asked.each)
    print(as_table(found))
    print(f"\n{found['microseconds_per_1000_characters']:.0f} microseconds per 1,000 characters")
    if asked.write:
        RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(f"# How often the loop detector is wrong\n\n{as_table(found)}\n")


if __name__ == "__main__":
    main()
