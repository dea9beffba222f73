"""Option types with named values, which shells complete and errors list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click
from click.shell_completion import CompletionItem


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
    from halfbyte.serve.knowledge import publications

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


RECIPE = NamedValue(_recipes, files=True)
PUBLISHED = NamedValue(_published)
SUITE = NamedValue(_suites)
PROFILE = NamedValue(_profiles)
EXAMPLE = NamedValue(_examples)
GPUS = GpusValue(_gpus)
