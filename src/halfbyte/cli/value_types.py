"""The click types of option values: named values, which shells complete and errors list, numbers, devices and paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from halfbyte.errors import UsageError
from halfbyte.machine.device_option import CPU, CUDA, device_names
from halfbyte.options.declare import Option


class NamedValue(click.types.StringParamType):
    """A value from a list of names that is loaded on demand.

    The command validates the value and suggests the nearest name. With `files`, the value may also be a path.
    """

    def __init__(self, names: Callable[[], Iterable[str]], *, files: bool = False) -> None:
        self._names, self._files = names, files

    def choices(self) -> Sequence[str]:
        """Return every name."""
        return list(self._names())

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete names. The leading file marker lets bash complete paths if no name matches."""
        items = [CompletionItem(incomplete, type="file")] if self._files else []
        return [
            *items,
            *(CompletionItem(name) for name in self._completions(incomplete) if name.startswith(incomplete)),
        ]

    def _completions(self, incomplete: str) -> Iterable[str]:
        return self._names()


class GpusValue(NamedValue):
    """GPUs as NxGPU, e.g. 8xB200."""

    def choices(self) -> Sequence[str]:
        """Return 8x of every known GPU."""
        return [f"8x{name}" for name in self._names()]

    def _completions(self, incomplete: str) -> Iterable[str]:
        """Complete the GPU name after the typed number, without spaces, which would split shell words."""
        count, x, _ = incomplete.partition("x")
        return (f"{count if x else 8}x{name.replace(' ', '')}" for name in self._names())


def _recipes() -> Iterable[str]:
    from halfbyte.recipe.load import recipe_names

    return recipe_names()


def _published() -> Iterable[str]:
    from halfbyte.serve.launch_data import publications

    return publications()


def _suites() -> Iterable[str]:
    from halfbyte.evaluate.suites import suite_names

    return suite_names()


def _profiles() -> Iterable[str]:
    from halfbyte.probe.profiles import profile_names

    return profile_names()


def _examples() -> Iterable[str]:
    from halfbyte.families.examples import EXAMPLES

    return EXAMPLES


def _gpus() -> Iterable[str]:
    from halfbyte.serve.gpus import known_gpus

    return known_gpus()


class FiniteRange(click.FloatRange):
    """A float range that rejects infinity and NaN, which passes every comparison."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail with a usage error."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


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


class _NonEmptyFolder(click.Path):
    """A non-empty folder path: an empty one, e.g. from an unset variable, would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


_PATH = click.Path(path_type=Path)
_KINDS: Mapping[str, click.ParamType[Any]] = {  # Declaration.kind -> type
    "recipe": NamedValue(_recipes, files=True),
    "published": NamedValue(_published),
    "suite": NamedValue(_suites),
    "profile": NamedValue(_profiles),
    "example": NamedValue(_examples),
    "gpus": GpusValue(_gpus),
    "device": _Devices(several=False),
    "devices": _Devices(several=True),
    "file": click.Path(dir_okay=False, path_type=Path),
    "folder": click.Path(file_okay=False, path_type=Path),
    "existing folder": click.Path(exists=True, file_okay=False, path_type=Path),
    "cache folder": _NonEmptyFolder(file_okay=False, path_type=Path),
}


def value_type(option: Option) -> click.ParamType[Any] | type | None:
    """Return the click type of one value of an option."""
    declared = option.declaration
    if declared.kind is not None:
        return _KINDS[declared.kind]
    if option.choices:
        return click.Choice(option.choices)
    if option.type is Path:
        return _PATH
    least, most = _either(declared.least, declared.above), _either(declared.most, declared.below)
    if least is None and most is None:
        return option.type
    if option.type is int:
        return click.IntRange(least, most)
    return FiniteRange(least, most, min_open=declared.above is not None, max_open=declared.below is not None)


def _either(closed: float | None, open_bound: float | None) -> Any:
    return closed if closed is not None else open_bound
