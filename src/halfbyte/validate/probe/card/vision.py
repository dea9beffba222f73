"""The vision smoke: does the model see the picture at all?

The numbers change with the seed, but for seed 0, which has the card's: a model that has read the card knows those.
"""

from __future__ import annotations

import random
import re

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.card.items import lacks_section
from halfbyte.validate.probe.card.picture import data_url, smoke_picture
from halfbyte.validate.probe.judging import judged
from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting, Shown, skipped
from halfbyte.validate.probe.marks import defects, whole
from halfbyte.validate.probe.profiles import Questions

NAME = "vision"
_REFUSED = range(400, 500)
_NO_PICTURES = re.compile(r"image input is not supported|mmproj")  # llama.cpp says it with status 500


class Vision(Questions):
    """What is asked about the picture."""

    ask: str
    max_tokens: int = 256


def _numbers(seed: int) -> tuple[str, int]:
    if not seed:
        return "K2-192", 166
    rng = random.Random(seed)
    return f"K{rng.randrange(2, 10)}-{rng.randrange(100, 1000)}", rng.randrange(100, 1000)


def _wrong(answer: Answer, label: str, total: int) -> list[Shown]:
    said = answer.text
    missing = [
        *([] if label in said else [f"the text {label}"]),
        *([] if re.search(rf"\b{total}\b", said) else [f"the sum {total}"]),
        *(f"the {color} square" for color in ("red", "blue") if not re.search(rf"\b{color}\b", said, re.IGNORECASE)),
        *([] if re.search(r"\bsquares?\b", said, re.IGNORECASE) else ["that they are squares"]),
    ]
    return [*defects(answer), *([whole(answer, f"not seen: {', '.join(missing)}")] if missing else [])]


def _run(setting: Setting) -> Finding:
    vision = setting.profile.need(NAME, Vision)
    label, total = _numbers(setting.seed)
    image = {"type": "image_url", "image_url": {"url": data_url(smoke_picture(label, total))}}
    turn = {"role": "user", "content": [image, {"type": "text", "text": vision.ask}]}
    answer = setting.client.chat([turn], max_tokens=vision.max_tokens)
    if answer.error and (answer.status in _REFUSED or _NO_PICTURES.search(answer.error)):
        return skipped(f"the server takes no pictures: {answer.error}")
    return judged([answer], [[] if answer.error else _wrong(answer, label, total)], what="seen", cause="vision")


VISION = Probe(
    NAME, "card", "vision smoke", "text benchmarks do not notice a vision tower that was quantized, or left out", True,
    _run, lambda _: Cost(1, 2000, 256), lacks_section(NAME),
)  # fmt: skip
