"""Special tokens in an answer: the server took them for text, or the model wrote them letter by letter."""

from __future__ import annotations

import re

from halfbyte.validate.probe.degeneracy.defect import Defect, KindOfText

# Kimi's and others' <|im_end|>, <|tool_call_begin|>, the full-width ones of DeepSeek, [EOS] and their like.
_ALWAYS = re.compile(
    r"<\|[A-Za-z_][A-Za-z0-9_ .:-]{0,60}\|>|<\uff5c[^\n<>]{1,60}\uff5c>|\[(?:EOS|BOS|PAD|UNK|EOT|SEP|CLS|MASK|INST|/INST)\]"
)
# Also words of HTML, XML or of a discussion: of prose only.
_IN_PROSE = re.compile(r"</?s>\s*$|<(?:eos|bos|pad|unk|eot)>|</?think>|</?tool_calls?>|</?tool_response>")


def leaked_tokens(text: str, kind: KindOfText = "any") -> list[Defect]:
    """Return each special token that stands in a text."""
    patterns = (_ALWAYS, _IN_PROSE) if kind == "prose" else (_ALWAYS,)
    found = [match for pattern in patterns for match in pattern.finditer(text)]
    return [
        Defect("special-token", match.start(), match.end(), f"the special token {match.group().strip()} is in the text")
        for match in found
    ]
