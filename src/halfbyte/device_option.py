"""The option that says where layers run, and what cannot go with it."""

from __future__ import annotations

import click

from halfbyte.errors import UsageError

CPU = "cpu"
device_option = click.option("--device", type=click.Choice([CPU, "cuda"]), default=CPU, show_default=True,
                             help="Where layers run; cuda takes one GPU.")  # fmt: skip


def refuse_threads_beside_device(threads: int | None, device: str) -> None:
    """A device is sent its work by one thread: a number of threads would be read by nobody."""
    if threads is not None and device != CPU:
        what = f"--threads cannot go with --device {device}, where one thread sends all the work"
        raise UsageError(what, where="--threads", fix="leave it out, or use --device cpu")
