"""Vision smoke test, and a PNG writer without dependencies for its picture: letters of 5 x 7 dots and rectangles."""

from __future__ import annotations

import base64
import random
import re
import struct
import zlib

from halfbyte.probe.answers import Answer
from halfbyte.probe.judging import defects, judged, whole
from halfbyte.probe.probe import (
    Cost,
    Excerpt,
    Finding,
    Probe,
    Setting,
    skipped,
)
from halfbyte.probe.profiles import Questions, lacks_section

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


# Vision smoke test: does the model see the image at all?
#
# The numbers depend on the seed. Seed 0 has those of the card, which a model may know from training.

NAME = "vision"
_REFUSED = range(400, 500)
_NO_PICTURES = re.compile(r"image input is not supported|mmproj")  # llama.cpp reports this with status 500


class Vision(Questions):
    """Question about the image."""

    ask: str
    max_tokens: int = 256


def _numbers(seed: int) -> tuple[str, int]:
    if not seed:
        return "K2-192", 166
    rng = random.Random(seed)
    return f"K{rng.randrange(2, 10)}-{rng.randrange(100, 1000)}", rng.randrange(100, 1000)


def _wrong(answer: Answer, label: str, total: int) -> list[Excerpt]:
    text = answer.text
    missing = [
        *([] if label in text else [f"the text {label}"]),
        *([] if re.search(rf"\b{total}\b", text) else [f"the sum {total}"]),
        *(f"the {color} square" for color in ("red", "blue") if not re.search(rf"\b{color}\b", text, re.IGNORECASE)),
        *([] if re.search(r"\bsquares?\b", text, re.IGNORECASE) else ["the word square"]),
    ]
    return [*defects(answer), *([whole(answer, f"not seen: {', '.join(missing)}")] if missing else [])]


def _run(setting: Setting) -> Finding:
    vision = setting.profile.need(NAME, Vision)
    label, total = _numbers(setting.seed)
    image = {"type": "image_url", "image_url": {"url": data_url(smoke_picture(label, total))}}
    turn = {"role": "user", "content": [image, {"type": "text", "text": vision.ask}]}
    answer = setting.client.chat([turn], max_tokens=vision.max_tokens)
    if answer.error and (answer.status in _REFUSED or _NO_PICTURES.search(answer.error)):
        return skipped(f"the server does not accept images: {answer.error}")
    return judged([answer], [[] if answer.error else _wrong(answer, label, total)], what="seen", cause="vision")


VISION = Probe(
    NAME, "card", "vision smoke test", "text benchmarks do not notice a quantized or missing vision tower", True,
    _run, lambda _: Cost(1, 2000, 256), lacks_section(NAME),
)  # fmt: skip
