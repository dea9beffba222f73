"""Draw a small PNG without dependencies: letters of 5 x 7 dots and rectangles."""

from __future__ import annotations

import base64
import struct
import zlib

Color = tuple[int, int, int]
WHITE, BLACK, RED, BLUE = (255, 255, 255), (0, 0, 0), (220, 20, 20), (20, 40, 220)
# Rows from top to bottom, one bit per dot, the leftmost dot in the highest bit.
_FONT = {
    "K": (17, 18, 20, 24, 20, 18, 17),
    "S": (15, 16, 16, 14, 1, 1, 30),
    "U": (17, 17, 17, 17, 17, 17, 14),
    "M": (17, 27, 21, 21, 17, 17, 17),
    "=": (0, 0, 31, 0, 31, 0, 0),
    "-": (0, 0, 0, 31, 0, 0, 0),
    "0": (14, 17, 19, 21, 25, 17, 14),
    "1": (4, 12, 4, 4, 4, 4, 14),
    "2": (14, 17, 1, 2, 4, 8, 31),
    "3": (31, 2, 4, 2, 1, 17, 14),
    "4": (2, 6, 10, 18, 31, 2, 2),
    "5": (31, 16, 30, 1, 1, 17, 14),
    "6": (6, 8, 16, 30, 17, 17, 14),
    "7": (31, 1, 2, 4, 8, 8, 8),
    "8": (14, 17, 17, 14, 17, 17, 14),
    "9": (14, 17, 17, 15, 1, 2, 12),
    " ": (0,) * 7,
}
_WIDE = 5


class Picture:
    """Pixels in rows; (0, 0) is the upper left one."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(WHITE) * width) for _ in range(height)]

    def rectangle(self, left: int, top: int, width: int, height: int, color: Color) -> None:
        """Fill a rectangle."""
        for row in self._rows[top : top + height]:
            row[3 * left : 3 * (left + width)] = bytes(color) * width

    def text(self, left: int, top: int, text: str, dot: int) -> None:
        """Write a line in black; `dot` is the size of one font dot in pixels."""
        for place, letter in enumerate(text):
            for y, bits in enumerate(_FONT[letter]):
                for x in range(_WIDE):
                    if bits >> (_WIDE - 1 - x) & 1:
                        self.rectangle(left + (place * (_WIDE + 1) + x) * dot, top + y * dot, dot, dot, BLACK)

    def png(self) -> bytes:
        """Return a PNG with eight bits per color."""
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self._rows), 9)
        chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, chunks))


def _chunk(chunk: tuple[bytes, bytes]) -> bytes:
    kind, data = chunk
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def smoke_picture(label: str, total: int) -> bytes:
    """Return the card's picture: a label, SUM=N, a red square on the left and a blue one on the right."""
    picture = Picture(448, 336)
    picture.text(40, 30, label, 8)
    picture.text(40, 110, f"SUM={total}", 8)
    picture.rectangle(60, 200, 100, 100, RED)
    picture.rectangle(288, 200, 100, 100, BLUE)
    return picture.png()


def data_url(png: bytes) -> str:
    """Return an image as a data URL for a chat."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
