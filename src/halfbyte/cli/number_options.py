"""Option types for finite numbers."""

from __future__ import annotations

import math
from typing import Any

import click

LONGEST_S = 604_800.0  # a week


class FiniteRange(click.FloatRange):
    """A float range that rejects infinity and NaN, which passes every comparison."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail with a usage error."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


SECONDS = FiniteRange(0, LONGEST_S, min_open=True)
