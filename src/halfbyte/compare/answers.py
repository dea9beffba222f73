"""Which tokens a model would have written itself: the answers in conversations of Kimi's template.

A model that was trained on answers alone predicts no questions; there its numbers are noise, and so is what a
quantized copy does to them. An answer goes from the end of an assistant's header to <|im_end|>, which it has to write
too. What a server writes for it is no part of it: <think>, and </think> right after it where thinking is off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.rows import Rows
from halfbyte.calibrate.vocabulary import Vocabulary
from halfbyte.errors import UsageError

_ASSISTANT, _MIDDLE, _END = "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"
_THINK, _THOUGHT = "<think>", "</think>"
_OTHER, _HEADER, _BEGUN, _OPENED, _INSIDE = range(5)


def answers(rows: Rows, vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """Return which tokens [R, L] are part of an answer."""
    special = vocabulary.special
    missing = [name for name in (_ASSISTANT, _MIDDLE, _END) if name not in special]
    if missing:
        what = f"the vocabulary has no {missing[0]}, so no answers are found in it"
        raise UsageError(what, where="--score answers", fix="leave --score out")
    steps = {
        (_HEADER, special[_MIDDLE]): _BEGUN,
        (_BEGUN, special.get(_THINK)): _OPENED,
        (_OPENED, special.get(_THOUGHT)): _INSIDE,
    }
    found = np.zeros(rows.tokens.size, np.bool_)
    state, document = _OTHER, -1
    pairs = zip(rows.tokens.reshape(-1).tolist(), rows.documents.reshape(-1).tolist(), strict=True)
    for at, (token, number) in enumerate(pairs):
        if number != document:
            state, document = _OTHER, number
        if token == special[_ASSISTANT]:
            state = _HEADER
        elif (state, token) in steps:
            state = steps[state, token]
        elif state in (_BEGUN, _OPENED, _INSIDE):
            found[at] = True
            state = _OTHER if token == special[_END] else _INSIDE
    if not found.any():
        raise UsageError("there are no answers in the data", where="--score answers", fix="give conversations")
    return found.reshape(rows.tokens.shape)
