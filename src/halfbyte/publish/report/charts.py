"""Charts as SVG, with a title and a description, styled by the page's CSS, and heat maps as PNG.

Lines differ by dash pattern and name, not only by color. A heat map is an embedded palette PNG with one pixel per
expert and layer.
"""

from __future__ import annotations

import base64
import itertools
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from halfbyte.publish.visible_text import visible, without_folders

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 624, 32, 252
DASHES = ("", "7 4", "2 3", "9 3 2 3")
_TICKS = 5
_LONGEST_NAME = 60
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Line:
    """A named line; each point is x, y and its tooltip."""

    name: str
    points: Sequence[tuple[float, float, str]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its confidence interval."""

    name: str
    low: float
    value: float
    high: float
    tooltip: str


@dataclass(frozen=True, slots=True)
class Axes:
    """The title, labels and range of a chart."""

    title: str
    across: str
    up: str
    from_zero: bool = True
    least: float = 0.0  # minimum height of the y range, so that tiny differences look small


class _Scale:
    """Maps values to coordinates; an empty range is widened."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, *, from_zero: bool, least: float = 0.0
    ) -> None:
        low, high = min(values), max(values)
        if high - low < least:
            low, high = (low + high - least) / 2, (low + high + least) / 2
        low = min(low, 0.0) if from_zero else low
        if high == low:
            low, high = low - 0.5, high + 0.5
        self.low, self.high, self._start, self._end = low, high, start, end

    def __call__(self, value: float) -> float:
        return self._start + (self._end - self._start) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return round tick values within the range."""
        rough = (self.high - self.low) / _TICKS
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [at * step for at in range(first, math.floor(self.high / step + 1e-9) + 1)]


def lines(axes: Axes, drawn: Sequence[Line]) -> Markup:
    """Draw a line chart with a dot at each point."""
    spots = [point for line in drawn for point in line.points]
    x = _Scale([at for at, _, _ in spots], LEFT, RIGHT, from_zero=False)
    y = _Scale([at for _, at, _ in spots], BOTTOM, TOP, from_zero=axes.from_zero, least=axes.least)
    parts = _grid(axes, x, y)
    for number, line in enumerate(drawn):
        kind, dashes = f"s{number % len(DASHES)}", DASHES[number % len(DASHES)]
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b, _ in line.points)
        parts.append(Markup('<polyline class="{} line" points="{}" stroke-dasharray="{}"/>').format(kind, path, dashes))
        for a, b, tooltip in line.points:
            circle = '<circle class="{} dot" cx="{:.1f}" cy="{:.1f}" r="3"><title>{}</title></circle>'
            parts.append(Markup(circle).format(kind, x(a), y(b), visible(tooltip)))
    height = HEIGHT
    if len(drawn) > 1:
        for number, line in enumerate(drawn):
            kind, dashes, at = f"s{number % len(DASHES)}", DASHES[number % len(DASHES)], HEIGHT + 20 * number
            sample = '<path class="{} line" d="M{} {}h36" stroke-dasharray="{}"/>'
            parts.append(Markup(sample).format(kind, LEFT, at + 4, dashes))
            parts.append(_text(LEFT + 46, at + 8, without_folders(line.name)[:_LONGEST_NAME]))
        height += 20 * len(drawn)
    return _svg(axes.title, f"{axes.up} by {axes.across}, {len(spots)} points", parts, height)


def bars(axes: Axes, names: Sequence[str], values: Sequence[float], tooltips: Sequence[str]) -> Markup:
    """Draw a bar chart."""
    y = _Scale(list(values), BOTTOM, TOP, from_zero=True)
    x = _Scale([0.0, float(len(values))], LEFT, RIGHT, from_zero=True)
    parts = _grid(axes, None, y)
    wide = (RIGHT - LEFT) / len(values)
    every = max(1, math.ceil(len(values) / 12))
    for number, (name, value, tooltip) in enumerate(zip(names, values, tooltips, strict=True)):
        rect = '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
        parts.append(
            Markup(rect).format(
                x(number) + wide * 0.1, y(value), wide * 0.8, max(BOTTOM - y(value), 0.0), visible(tooltip)
            )
        )
        if number % every == 0:
            parts.append(_text(x(number) + wide / 2, BOTTOM + 18, name, "middle"))
    return _svg(axes.title, f"{axes.up} by {axes.across}, {len(values)} bars", parts, HEIGHT)


def intervals(title: str, across: str, drawn: Sequence[Interval], marks: Sequence[tuple[float, str]]) -> Markup:
    """Draw a forest plot: one interval per row, with vertical marks across all rows."""
    limits = [at for interval in drawn for at in (interval.low, interval.high)] + [at for at, _ in marks]
    room = 0.06 * (max(limits) - min(limits) or 1.0)
    x = _Scale([min(limits) - room, max(limits) + room], LEFT, RIGHT, from_zero=False)
    top = TOP + 16 * len(marks)
    bottom = top + 46 * len(drawn)
    parts: list[Markup] = []
    for tick in x.ticks():
        parts.append(Markup('<path class="grid" d="M{:.1f} {}V{}"/>').format(x(tick), top, bottom))
        parts.append(_text(x(tick), bottom + 18, f"{tick:g}", "middle"))
    for number, (at, name) in enumerate(marks):
        parts.append(Markup('<path class="mark" d="M{:.1f} {}V{}"/>').format(x(at), 18 + 16 * number, bottom))
        parts.append(_text(min(max(x(at), LEFT + 20), RIGHT - 20), 14 + 16 * number, name, "middle"))
    for number, interval in enumerate(drawn):
        y = top + 46 * number + 32
        parts.append(_text(LEFT - 56, y - 14, without_folders(interval.name)[:_LONGEST_NAME]))
        low, high = x(interval.low), x(interval.high)
        whisker = '<path class="s0 line" d="M{:.1f} {}H{:.1f}M{:.1f} {}v8M{:.1f} {}v8"><title>{}</title></path>'
        parts.append(Markup(whisker).format(low, y, high, low, y - 4, high, y - 4, visible(interval.tooltip)))
        parts.append(Markup('<circle class="s0 dot" cx="{:.1f}" cy="{}" r="4"/>').format(x(interval.value), y))
    parts.append(_text((LEFT + RIGHT) / 2, bottom + 38, across, "middle"))
    return _svg(title, f"{len(drawn)} intervals of {across}", parts, bottom + 48)


def _grid(axes: Axes, x: _Scale | None, y: _Scale) -> list[Markup]:
    parts: list[Markup] = [_text(8, 14, axes.up)]
    for tick in y.ticks():
        parts.append(Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(LEFT, y(tick), RIGHT))
        parts.append(_text(LEFT - 8, y(tick) + 4, f"{tick:,.6g}", "end"))
    for tick in x.ticks() if x else []:
        parts.append(_text(x(tick) if x else 0, BOTTOM + 18, f"{tick:,.6g}", "middle"))
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 38, axes.across, "middle"))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, visible(text))


def _svg(title: str, about: str, parts: Sequence[Markup], height: int) -> Markup:
    name = f"figure-{next(_numbers)}"
    head = Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-labelledby="{}-t {}-d"><title id="{}-t">{}</title>'
        '<desc id="{}-d">{}</desc>'
    ).format(WIDTH, height, name, name, name, visible(title), name, escape(visible(about)))
    return head + Markup("").join(parts) + Markup("</svg>")


LEVELS = 64
NOTHING = 255  # pixel value for a missing expert or value
_LIGHT, _DARK, _NONE = (232, 238, 248), (10, 44, 110), (214, 120, 40)


def shades(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Scale values from 0 to their maximum to 0 .. LEVELS - 1; NaN becomes `NOTHING`."""
    known = np.isfinite(values)
    most = float(np.max(values, where=known, initial=0.0))
    safe = np.where(known, values, 0.0)
    level = np.rint(safe / most * (LEVELS - 1)) if most > 0 else np.zeros_like(safe)
    return np.where(known, level, NOTHING).astype(np.uint8)


def picture(pixels: NDArray[np.uint8], alt: str) -> Markup:
    """Return an <img> of [layers, experts] levels."""
    raw = base64.b64encode(png(pixels)).decode()
    rows, columns = pixels.shape
    tag = '<img class="heat" width="{}" height="{}" alt="{}" src="data:image/png;base64,{}">'
    return Markup(tag).format(columns, rows, visible(alt), raw)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a palette PNG."""
    rows, columns = pixels.shape
    palette = bytearray()
    for level in range(256):
        part = min(level, LEVELS - 1) / (LEVELS - 1)
        mixed = [round(a + (b - a) * part) for a, b in zip(_LIGHT, _DARK, strict=True)]
        palette += bytes(_NONE if level == NOTHING else mixed)
    lines: NDArray[Any] = np.concatenate([np.zeros((rows, 1), np.uint8), pixels], axis=1)
    head = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    chunks = (b"IHDR", head), (b"PLTE", bytes(palette)), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
