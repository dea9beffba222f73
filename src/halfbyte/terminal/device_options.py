"""The options that say where layers run, and how much of a GPU's memory may be taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from halfbyte.errors import UsageError
from halfbyte.machine.devices import CPU, CUDA, device_names
from halfbyte.terminal.units import nbytes

__all__ = ["CPU", "CUDA", "chosen_device_memory", "device_option", "device_options", "refuse_threads_beside_device"]


class _Devices(click.ParamType[str]):
    """Devices by name; whether the machine has them is said when they are used."""

    name = "device"

    def __init__(self, *, several: bool) -> None:
        self._several = several

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the names as everything else reads them."""
        names = device_names(value)
        if names[0].startswith(CPU) and value != CPU:
            raise UsageError(f"'{value}' names no device", where="--device", fix="write cpu")
        if value not in (CPU, CUDA) and not self._several:
            where = ctx.command_path if ctx else "--device"
            fix = "write --device cuda; CUDA_VISIBLE_DEVICES=1 makes another GPU the first"
            raise UsageError("this command runs on one GPU, the first", where=where, fix=fix)
        return ",".join(names)


device_option = click.option("--device", type=_Devices(several=False), metavar="cpu|cuda", default=CPU,
                             show_default=True, help="Where layers run; cuda takes one GPU.")  # fmt: skip
_several = click.option("--device", type=_Devices(several=True), metavar="cpu|cuda|cuda:N,...", default=CPU,
                        show_default=True, help="Where layers run and experts are encoded: the CPU, one GPU, or "
                        "several (cuda:0,cuda:1), which share the tokens.")  # fmt: skip


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --device, for several, and --device-memory."""
    memory = "Take at most so much of each GPU's memory, as in 24GB.  [default: what is free]"
    return _several(click.option("--device-memory", metavar="SIZE", help=memory)(command))


def chosen_device_memory(choice: Mapping[str, Any]) -> int | None:
    """Return the bytes that may be taken of each GPU; None: all that are free."""
    text: str | None = choice["device_memory"]
    if text is None:
        return None
    if choice["device"] == CPU:
        fix = "add --device cuda, or leave it out"
        raise UsageError("there is no GPU whose memory could be limited", where="--device-memory", fix=fix)
    return nbytes(text)


def refuse_threads_beside_device(threads: int | None, device: str) -> None:
    """A device is sent its work by one thread: a number of threads would be read by nobody."""
    if threads is not None and device != CPU:
        what = f"--threads cannot go with --device {device}, where one thread sends all the work"
        raise UsageError(what, where="--threads", fix="leave it out, or use --device cpu")
