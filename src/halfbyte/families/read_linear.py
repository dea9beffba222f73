"""Read a linear from a checkpoint in its stored format. Needs NumPy, which `families.linears` does without."""

from __future__ import annotations

from halfbyte.checkpoint.reader import Reader
from halfbyte.families.linears import StoredLinear
from halfbyte.formats.encoded import Encoded
from halfbyte.formats.registry import FORMATS


def stored(linear: StoredLinear, reader: Reader) -> Encoded:
    """Read a linear in its stored format."""
    suffixes = [part.suffix for part in FORMATS[linear.format].tensors]
    tensors = {suffix: reader.tensor(linear.parts[suffix]) for suffix in suffixes}
    return Encoded(linear.format, linear.shape, tensors)
