"""Hashes of the tensors in a safetensors file, by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def tensor_hashes(path: Path) -> dict[str, str]:
    """Return each tensor's SHA-256, and that of the metadata."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    about = json.dumps(header.pop("__metadata__", {}), sort_keys=True).encode()
    places = {name: slice(*(begin + at for at in info["data_offsets"])) for name, info in header.items()}
    found = {name: hashlib.sha256(data[place]).hexdigest() for name, place in places.items()}
    return found | {"__metadata__": hashlib.sha256(about).hexdigest()}
