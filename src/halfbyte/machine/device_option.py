"""Parse --device: `cpu`, `cuda` or `cuda:1` for one GPU, `cuda:0,cuda:1` for several."""

from __future__ import annotations

import os
import re

from halfbyte.errors import UsageError

CPU, CUDA = "cpu", "cuda"
TWICE = "HALFBYTE_SAME_DEVICE_TWICE"  # lets tests list one GPU several times to run the multi-GPU code on it
_NAME = re.compile(r"cuda(:(0|[1-9][0-9]?))?|cpu(:0)?")  # cpu:0 is Triton's interpreter, for tests


def device_names(text: str) -> list[str]:
    """Return the listed devices in order; raise for invalid names and duplicates."""
    names = [name.strip() for name in text.split(",")]
    if invalid := [name for name in names if not _NAME.fullmatch(name)]:
        fix = "use cpu, cuda, cuda:1, or cuda:0,cuda:1 for several GPUs"
        raise UsageError(f"invalid device '{invalid[0]}'", where=f"--device {text}", fix=fix)
    if len(names) > 1:
        if unnumbered := [name for name in names if ":" not in name]:
            what = f"'{unnumbered[0]}' needs a GPU number in a list of devices"
            raise UsageError(what, where=f"--device {text}", fix="number each GPU: cuda:0,cuda:1")
        if len({name.partition(":")[0] for name in names}) > 1:
            raise UsageError("GPUs cannot be combined with the CPU", where=f"--device {text}", fix="list only GPUs")
        if len(set(names)) < len(names) and not os.environ.get(TWICE):
            duplicate = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"{duplicate} is listed twice", where=f"--device {text}", fix="list each GPU once")
    return names


def device_kind(text: str) -> str:
    """Return the device label that statistics record: the kind, and the count if there are several.

    The index of a GPU does not matter. The number of GPUs does: it changes matrix shapes, and thereby the last bits of
    sums.
    """
    names = device_names(text)
    kind = CUDA if names[0].startswith(CUDA) else names[0]
    return kind if len(names) == 1 else f"{kind} x{len(names)}"


def refuse_threads_beside_device(threads: int | None, device: str) -> None:
    """Refuse --threads with a GPU, where a single thread submits all work."""
    if threads is not None and device != CPU:
        what = f"--threads cannot be combined with --device {device}, where one thread submits all work"
        raise UsageError(what, where="--threads", fix="omit it, or use --device cpu")
