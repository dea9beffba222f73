"""Heat map of experts by layer: an embedded palette PNG with one pixel per expert and layer."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from halfbyte.publish.report.visible import visible

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
