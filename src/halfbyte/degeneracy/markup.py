"""Find special tokens in an answer: parsed as text by the server, or spelled out by the model."""

from __future__ import annotations

import re

from halfbyte.degeneracy.defect import Defect, KindOfText

# Special tokens such as Kimi's <|im_end|> and <|tool_call_begin|>, DeepSeek's full-width ones, and [EOS].
_ALWAYS = re.compile(
    r"<\|[A-Za-z_][A-Za-z0-9_ .:-]{0,60}\|>|<\uff5c[^\n<>]{1,60}\uff5c>"
    r"|\[(?:EOS|BOS|PAD|UNK|EOT|SEP|CLS|MASK|INST|/INST)\]"
)
# Also used in HTML, XML and discussions of models: checked in prose only.
_IN_PROSE = re.compile(r"</?s>\s*$|<(?:eos|bos|pad|unk|eot)>|</?think>|</?tool_calls?>|</?tool_response>")


def leaked_tokens(text: str, kind: KindOfText = "any") -> list[Defect]:
    """Return each special token in a text."""
    patterns = (_ALWAYS, _IN_PROSE) if kind == "prose" else (_ALWAYS,)
    matches = [match for pattern in patterns for match in pattern.finditer(text)]
    return [
        Defect("special-token", match.start(), match.end(), f"special token {match.group().strip()} in the text")
        for match in matches
    ]
