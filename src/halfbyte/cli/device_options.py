"""The --device and --device-memory options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from halfbyte.errors import UsageError
from halfbyte.machine.devices import CPU, CUDA, device_names
from halfbyte.ui.units import nbytes

__all__ = ["CPU", "CUDA", "chosen_device_memory", "device_option", "device_options"]


class _Devices(click.ParamType[str]):
    """Device names. Whether the machine has them is checked when they are used."""

    name = "device"

    def __init__(self, *, several: bool) -> None:
        self._several = several

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the normalized names, separated by commas."""
        names = device_names(value)
        if names[0].startswith(CPU) and value != CPU:
            raise UsageError(f"'{value}' is not a valid device", where="--device", fix="use cpu")
        if value not in (CPU, CUDA) and not self._several:
            where = ctx.command_path if ctx else "--device"
            fix = "use --device cuda; CUDA_VISIBLE_DEVICES=1 selects another GPU"
            raise UsageError("this command runs on the first GPU only", where=where, fix=fix)
        return ",".join(names)


device_option = click.option("--device", type=_Devices(several=False), metavar="cpu|cuda", default=CPU,
                             show_default=True, help="Where layers run; cuda is one GPU.")  # fmt: skip
_several = click.option("--device", type=_Devices(several=True), metavar="cpu|cuda|cuda:N,...", default=CPU,
                        show_default=True, help="Where layers run and experts are encoded: the CPU, one GPU, or "
                        "several (cuda:0,cuda:1), which share the tokens.")  # fmt: skip


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --device, which accepts several GPUs, and --device-memory."""
    memory = "Limit on each GPU's memory, e.g. 24GB.  [default: all free memory]"
    return _several(click.option("--device-memory", metavar="SIZE", help=memory)(command))


def chosen_device_memory(choice: Mapping[str, Any]) -> int | None:
    """Return the memory limit of each GPU in bytes, or None for all free memory."""
    text: str | None = choice["device_memory"]
    if text is None:
        return None
    if choice["device"] == CPU:
        from halfbyte.engine.backends.support import DEVICE_MEMORY_WITHOUT_GPU

        raise DEVICE_MEMORY_WITHOUT_GPU.as_error()
    return nbytes(text)
