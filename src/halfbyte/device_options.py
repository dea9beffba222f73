"""The options that say where layers run, and how much of a GPU's memory may be taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from halfbyte.errors import UsageError
from halfbyte.units import nbytes

CPU, CUDA = "cpu", "cuda"


device_option = click.option("--device", type=click.Choice([CPU, CUDA]), default=CPU, show_default=True,
                             help="Where layers run and experts are encoded; cuda takes one GPU.")  # fmt: skip


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --device and --device-memory."""
    memory = "Take at most so much of the GPU's memory, as in 24GB.  [default: what is free]"
    return device_option(click.option("--device-memory", metavar="SIZE", help=memory)(command))


def chosen_device_memory(choice: Mapping[str, Any]) -> int | None:
    """Return the bytes that may be taken; None: all that are free."""
    text: str | None = choice["device_memory"]
    if text is None:
        return None
    if choice["device"] != CUDA:
        fix = "add --device cuda, or leave it out"
        raise UsageError("there is no GPU whose memory could be limited", where="--device-memory", fix=fix)
    return nbytes(text)


def refuse_threads_beside_device(threads: int | None, device: str) -> None:
    """A device is sent its work by one thread: a number of threads would be read by nobody."""
    if threads is not None and device != CPU:
        what = f"--threads cannot go with --device {device}, where one thread sends all the work"
        raise UsageError(what, where="--threads", fix="leave it out, or use --device cpu")
