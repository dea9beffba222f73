"""The study of pruning as a page: tables in Markdown and two plots in SVG, from its JSON file.

python -m benchmarks.study_pruning_report benchmarks/results/pruning_kimi-mini_202611.json
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

Row = dict[str, Any]

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 500, 24, 352
COLORS = ("#1457c8", "#c8531e", "#1f8a4c", "#8a1f7c", "#7a6a00", "#008a93", "#b0183a", "#555555")
DASHES = {"mixed": "", "task": "7 4", "max_min": "2 3", "even": "9 3 2 3"}
KEEPS = (100, 75, 62, 50, 37)


def measured(results: dict[str, Any]) -> list[Row]:
    """Return the builds with numbers; one with the same experts as an earlier build has that one's."""
    by_name = {row["name"]: row for row in results["builds"]}
    return [{**by_name[row["same_as"]], **row} if "same_as" in row else row for row in results["builds"]]


def page(results: dict[str, Any], plots: Sequence[str]) -> str:
    """Return the Markdown."""
    rows = measured(results)
    base, others = rows[0], rows[1:]
    domains = [*results["domains"]]
    settings = ", ".join(f"{name} {value}" for name, value in results["settings"].items())
    parts = [
        "# Pruning kimi-mini",
        f"{results['device']}, torch {results['torch']}, {results['date']}: `{results['command']}` ({settings}).",
        "Right: greedy answers to the same held-out items of all domains; lost and gained against all experts,"
        " McNemar's exact p. Loops: of open-ended texts at temperatures 0 and 0.7, with Wilson's 95 % interval. Short:"
        " those that end after fewer than 25 words. KL to"
        " all experts, in nats an answer token, with its 95 % interval over documents. Worst coverage: of the domain"
        " that the kept experts cover least, on the mixed text, as a prune plan reports it. By domain: % right.",
    ]
    if absent := unmeasured(others):
        parts.append(
            f"**The run was cut by its time limit.** {len(others)} pruned builds were measured. Not: {absent}."
        )
    for keep in KEEPS[1:]:
        chosen = [row for row in others if row["keep"] == keep and not is_repair(row)]
        if chosen:
            parts += [f"## {keep} % of the experts", table([base, *sorted(chosen, key=_kl)], domains)]
    repairs = [row for row in others if is_repair(row)]
    if repairs:
        before = [row for row in others if not is_repair(row) and row["name"] in _beside(repairs)]
        parts += ["## Repairs", table([base, *sorted(before + repairs, key=lambda row: row["name"])], domains)]
    return "\n\n".join([*parts, *(f"![]({plot})" for plot in plots)]) + "\n"


def unmeasured(rows: Sequence[Row]) -> str:
    """Return the missing cells of the grid: methods tried with some numbers of experts, but not with all."""
    grid = [row for row in rows if not is_repair(row)]
    cells = list(dict.fromkeys((row["method"], row["calibration"]) for row in grid))
    found = {(row["keep"], row["method"], row["calibration"]) for row in grid}
    absent: list[str] = []
    for keep in KEEPS[1:]:
        missing = [" ".join(cell) for cell in cells if (keep, *cell) not in found]
        if len(missing) == len(cells):
            absent.append(f"anything at {keep} %")
        elif missing:
            absent.append(f"at {keep} % {', '.join(missing)}")
    return "; ".join(absent)


def is_repair(row: Row) -> bool:
    """Whether a build is something other than a cell of the grid."""
    return row["tuned"] or "restored" in row["calibration"]


def _beside(repairs: Sequence[Row]) -> set[str]:
    """Return the builds of the grid that repairs are read against."""
    plain = {row["name"].removesuffix(" tuned") for row in repairs}
    return plain | {"reap task 62 %", "reap mixed 62 %", "reap task 50 %"}


def _kl(row: Row) -> float:
    return row["kl"]["all"]["value"]


def table(rows: Sequence[Row], domains: Sequence[str]) -> str:
    """Return one table."""
    heads = [
        "build",
        "right, %",
        "lost/gained, p",
        "loops, %",
        "short, %",
        "KL",
        "worst domain",
        "worst coverage",
        *domains,
    ]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(_cells(row, domains)) + " |" for row in rows)])


def _cells(row: Row, domains: Sequence[str]) -> list[str]:
    whole, loops, kl = row["domains"]["all"], row["loops"], row["kl"]
    worst = kl["domains"][kl["worst"]]
    return [
        row["name"],
        f"{100 * whole['score']:.1f}",
        f"-{whole['lost']} +{whole['gained']}, {whole['p']:.2g}",
        f"{100 * loops['loops'] / loops['texts']:.1f} ({100 * loops['low']:.0f}-{100 * loops['high']:.0f})",
        f"{100 * loops['short'] / loops['texts']:.1f}",
        _estimate(kl["all"]),
        f"{kl['worst']} {_estimate(worst)}",
        f"{100 * row['worst_coverage']:.0f} %",
        *(f"{100 * row['domains'][domain]['score']:.0f}" for domain in domains),
    ]


def _estimate(found: dict[str, float | None]) -> str:
    if found["low"] is None or found["high"] is None:
        return f"{found['value']:.3f}"
    return f"{found['value']:.3f} ({found['low']:.3f}-{found['high']:.3f})"


def plot(rows: Sequence[Row], title: str, value: Callable[[Row], float], *, log: bool) -> str:
    """Return an SVG: across how many experts stay, up a number; a line for each way to choose them."""
    lines: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows[1:]:
        if not is_repair(row):
            calibration = "" if row["method"] == "random" else row["calibration"]
            lines.setdefault((row["method"], calibration), {}).setdefault(row["keep"], []).append(value(row))
    values = [one for line in lines.values() for found in line.values() for one in found]
    least, most = min(values, default=1.0), max(values, default=1.0) or 1.0
    floor = max(least, 1e-4) if log else 0.0

    def up(number: float) -> float:
        if log:
            span = math.log(most / floor) or 1.0
            return BOTTOM - (BOTTOM - TOP) * math.log(max(number, floor) / floor) / span
        return BOTTOM - (BOTTOM - TOP) * number / most

    def across(keep: int) -> float:
        return LEFT + (RIGHT - LEFT) * (keep - 33) / (79 - 33)

    methods = list(dict.fromkeys(method for method, _ in lines))
    drawn = [f'<text x="{LEFT}" y="15" font-weight="bold">{escape(title)}</text>']
    drawn += [_text(across(keep), BOTTOM + 18, f"{keep} %", "middle") for keep in KEEPS[1:]]
    for tick in range(5):
        number = floor * (most / floor) ** (tick / 4) if log else most * tick / 4
        drawn.append(f'<path d="M{LEFT} {up(number):.1f}H{RIGHT}" stroke="#ddd"/>')
        drawn.append(_text(LEFT - 6, up(number) + 4, f"{number:.2g}", "end"))
    for at, ((method, calibration), found) in enumerate(sorted(lines.items())):
        color, dash = COLORS[methods.index(method) % len(COLORS)], DASHES.get(calibration, "")
        mean = [(across(keep), up(sum(found[keep]) / len(found[keep]))) for keep in sorted(found)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in mean)
        style = f'fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"'
        drawn.append(f'<polyline points="{points}" {style}/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in mean]
        y = TOP + 10 + 17 * at
        drawn.append(f'<path d="M{RIGHT + 20} {y - 4}h34" {style}/>')
        drawn.append(_text(RIGHT + 60, y, f"{method} {calibration}".strip(), "start"))
    body = "\n".join(drawn)
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    font = 'font-family="sans-serif" font-size="12"'
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{ground}\n{body}\n</svg>\n'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def broken_share(row: Row) -> float:
    """Return the share of texts that loop or end after a few words."""
    return (row["loops"]["loops"] + row["loops"]["short"]) / row["loops"]["texts"]


def main() -> None:
    """Write the page and the plots beside the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    results = json.loads(path.read_text())
    rows = measured(results)
    plots = {
        f"{path.stem}_kl.svg": plot(rows, "KL to all experts, nats an answer token", _kl, log=True),
        f"{path.stem}_broken.svg": plot(
            rows, "share of open-ended texts that loop or break off", broken_share, log=False
        ),
    }
    for name, text in plots.items():
        path.with_name(name).write_text(text)
    path.with_suffix(".md").write_text(page(results, list(plots)))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
