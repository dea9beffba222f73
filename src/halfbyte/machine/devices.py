"""Where a run takes place, as text: `cpu`, `cuda` or `cuda:1` for one GPU, `cuda:0,cuda:1` for several."""

from __future__ import annotations

import os
import re

from halfbyte.errors import UsageError

CPU, CUDA = "cpu", "cuda"
TWICE = "HALFBYTE_SAME_DEVICE_TWICE"  # lets one GPU be named more than once, to check what several do where one is
_NAME = re.compile(r"cuda(:(0|[1-9][0-9]?))?|cpu(:0)?")  # cpu:0 is Triton's interpreter, for tests


def device_names(text: str) -> list[str]:
    """Return the devices that a text names, in their order; refuse what names none, or one of them twice."""
    names = [name.strip() for name in text.split(",")]
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        fix = "write cpu, cuda, cuda:1, or cuda:0,cuda:1 for several GPUs"
        raise UsageError(f"'{wrong[0]}' names no device", where=f"--device {text}", fix=fix)
    if len(names) > 1:
        if unclear := [name for name in names if ":" not in name]:
            what = f"'{unclear[0]}' cannot stand beside others: which GPU it is must be said"
            raise UsageError(what, where=f"--device {text}", fix="give each GPU its number: cuda:0,cuda:1")
        if len({name.partition(":")[0] for name in names}) > 1:
            raise UsageError("GPUs cannot share a run with the CPU", where=f"--device {text}", fix="name GPUs only")
        if len(set(names)) < len(names) and not os.environ.get(TWICE):
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"{twice} is named twice", where=f"--device {text}", fix="name each GPU once")
    return names


def device_kind(text: str) -> str:
    """Return what statistics say of where they were measured: the kind, and how many where there are several.

    Two GPUs of one machine count alike; another number of them multiplies matrices of other shapes, whose sums may
    differ in their last bits.
    """
    names = device_names(text)
    kind = CUDA if names[0].startswith(CUDA) else names[0]
    return kind if len(names) == 1 else f"{kind} x{len(names)}"
