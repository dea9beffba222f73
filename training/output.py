"""What a model wrote: where its thinking ends, what its answer is, and whether it ended by itself."""

from __future__ import annotations

from training.chat import END  # callers leave it at the end of `output` when the model produced it

END_OF_THINKING = "</think>"


def ended(output: str) -> bool:
    """Whether the model closed its turn, rather than being cut off."""
    return output.rstrip().endswith(END)


def answer_of(output: str) -> str:
    """Return the text after any thinking, without the end marker and surrounding white space."""
    return output.rpartition(END_OF_THINKING)[2].partition(END)[0].strip()
