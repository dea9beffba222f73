"""The commands that write output, each on the same small source, into a given folder."""

from __future__ import annotations

from pathlib import Path

from calibratable import arguments

WRITING = ("quantize", "calibrate", "calibrated quantize", "prune")


def words(name: str, place: Path, out: Path, source: Path | None = None) -> list[object]:
    """Return a command's arguments; the source can be replaced."""
    source, data = source or place / "source", place / "texts.jsonl"
    if name == "quantize":
        return ["-q", "quantize", source, out, "-r", "kimi-k2.6-mxfp4-wafer", "--threads", "2"]
    if name == "calibrate":
        return ["-q", "calibrate", source, "-o", out, *arguments(data)]
    if name == "calibrated quantize":
        return ["-q", "quantize", source, out, *arguments(data), "--threads", "2"]
    measured = ["--data", f"news={data}", "--samples", "6", "--length", "24"]
    return ["-q", "prune", source, out, "--keep", "2", *measured, "--threads", "2", "--no-loops"]
