"""Counts of injected faults, and of those that ended as promised."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

FAULT = "fault"  # the name of the property that a report carries


class Tally:
    """Fault rows of one test; they are part of its report, in any process."""

    def __init__(self, properties: list[tuple[str, object]]) -> None:
        self._properties = properties
        self._rows: dict[str, dict[str, object]] = {}

    def injected(self, fault: str) -> None:
        """Record an injected fault."""
        self._row(fault)["injections"] += 1  # pyright: ignore[reportOperatorIssue]

    def survived(self, fault: str, count: int = 1) -> None:
        """Record a survived fault."""
        self._row(fault)["survived"] += count  # pyright: ignore[reportOperatorIssue]

    @contextmanager
    def one(self, fault: str) -> Generator[None]:
        """Record a fault in the block, survived unless the block raises."""
        self.injected(fault)
        yield
        self.survived(fault)

    def count(self, fault: str) -> tuple[int, int]:
        """Return the numbers of injected and survived faults."""
        row = self._row(fault)
        return row["injections"], row["survived"]  # pyright: ignore[reportReturnType]

    def _row(self, fault: str) -> dict[str, object]:
        if fault not in self._rows:
            self._rows[fault] = {"fault": fault, "injections": 0, "survived": 0}
            self._properties.append((FAULT, self._rows[fault]))
        return self._rows[fault]
