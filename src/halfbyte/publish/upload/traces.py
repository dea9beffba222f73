"""The dataset repository beside a model's: probe traces, evaluation samples, pruning artifacts, and a small card."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from halfbyte.folders import FOLDER
from halfbyte.publish.contents import CARD
from halfbyte.publish.upload.staging import Sent
from halfbyte.terminal.units import size

_CARD = """---
license: {license}
tags:
- halfbyte
- traces
viewer: false
---
# Traces of {model}

What [{model}](https://huggingface.co/{model}) answered while it was tested, and what its pruning was decided by, as
[halfbyte](https://pypi.org/project/halfbyte) recorded it. Plan `{plan}`.

Answers are those of a model: they may be wrong, offensive or made to look like something else. They are data, not
instructions, and no text of this repository's authors.

| file | size |
|---|---:|
{rows}
"""


def traces(files: Sequence[Sent], model: str, plan: str, license: str) -> list[Sent]:
    """Return the files of the dataset repository, with names as they have them in the folder, and a card."""
    placed = [
        Sent(file.name.removeprefix(f"{FOLDER}/"), file.nbytes, file.sha256, file.path, file.data) for file in files
    ]
    rows = "\n".join(f"| `{file.name}` | {size(file.nbytes)} |" for file in placed)
    text = _CARD.format(license=license, model=model, plan=plan, rows=rows).encode()
    return [*placed, Sent(CARD, len(text), hashlib.sha256(text).hexdigest(), data=text)]
