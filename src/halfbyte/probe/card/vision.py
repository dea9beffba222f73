"""Vision smoke test: does the model see the image at all?

The numbers depend on the seed. Seed 0 has those of the card, which a model may know from training.
"""

from __future__ import annotations

import random
import re

from halfbyte.probe.answers import Answer
from halfbyte.probe.card.items import lacks_section
from halfbyte.probe.card.picture import data_url, smoke_picture
from halfbyte.probe.judging import judged
from halfbyte.probe.kinds import (
    Cost,
    Finding,
    Probe,
    Setting,
    Shown,
    skipped,
)
from halfbyte.probe.marks import defects, whole
from halfbyte.probe.profiles import Questions

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


def _wrong(answer: Answer, label: str, total: int) -> list[Shown]:
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
