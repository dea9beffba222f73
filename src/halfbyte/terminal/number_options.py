"""Numbers on the command line that are numbers: NaN passes every comparison, and no clock waits for ever."""

from __future__ import annotations

import math
from typing import Any

import click

LONGEST_S = 604_800.0  # a week


class FiniteRange(click.FloatRange):
    """A range of numbers, without infinity and NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or say what is wrong with it."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number that can be used here.", param, ctx)
        return number


SECONDS = FiniteRange(0, LONGEST_S, min_open=True)
