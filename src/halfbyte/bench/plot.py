"""Plot throughput against tokens per second per user as an SVG. Up and right is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from halfbyte.bench.shapes import Point
from halfbyte.bench.summary import Summary

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 520, 40, 360
COLORS = ("#1457c8", "#c8531e", "#1f8a4c", "#8a1f7c", "#7a6a00", "#008a93", "#b0183a", "#555555")
TICKS = 5

Spot = tuple[float, float, str]


def plot(summaries: Sequence[Summary], note: str) -> str | None:
    """Return the SVG, with a line per server and shape and a dot per concurrency, or None without data."""
    lines: dict[str, list[Spot]] = {}
    for row in sorted(summaries, key=lambda summary: summary.point.concurrency):
        if row.tokens_per_second and row.tokens_per_second_per_user:
            spot = (row.tokens_per_second_per_user, row.tokens_per_second, str(row.point.concurrency))
            lines.setdefault(f"{row.arm}: {_shape(row.point)}", []).append(spot)
    if not lines:
        return None
    return _svg(lines, note)


def _shape(point: Point) -> str:
    return str(point).partition(", ")[2]


def _svg(lines: Mapping[str, Sequence[Spot]], note: str) -> str:
    spots = [spot for series in lines.values() for spot in series]
    widest, highest = 1.1 * max(x for x, _, _ in spots), 1.1 * max(y for _, y, _ in spots)

    def across(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * value / widest

    def up(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / highest

    drawn = [_text(LEFT, 16, "output tokens per second, total against per user", "start", bold=True)]
    if note:
        drawn.append(_text(LEFT, 32, note, "start"))
    for tick in range(TICKS):
        x, y = (limit * tick / (TICKS - 1) for limit in (widest, highest))
        drawn.append(f'<path d="M{LEFT} {up(y):.1f}H{RIGHT}" stroke="#ddd"/>')
        drawn.append(_text(LEFT - 6, up(y) + 4, f"{y:,.3g}", "end"))
        drawn.append(_text(across(x), BOTTOM + 18, f"{x:,.3g}", "middle"))
    drawn.append(_text((LEFT + RIGHT) / 2, BOTTOM + 38, "tokens per second per user", "middle"))
    for at, (name, series) in enumerate(lines.items()):
        color = COLORS[at % len(COLORS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _ in series)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for x, y, users in series:
            drawn.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" fill="{color}"/>')
            drawn.append(_text(across(x) + 6, up(y) - 6, users, "start"))
        y = TOP + 12 + 18 * at
        drawn.append(f'<path d="M{RIGHT + 20} {y - 4}h30" stroke="{color}" stroke-width="2"/>')
        drawn.append(_text(RIGHT + 56, y, name, "start"))
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    body = "\n".join(drawn)
    font = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{ground}\n{body}\n</svg>\n'


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
