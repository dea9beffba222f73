"""User-facing errors: what happened, where, and how to fix it."""

from __future__ import annotations

EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_MACHINE = 3
EXIT_INTERRUPTED = 130


class HalfbyteError(Exception):
    """Base class of the errors that the command line prints without a traceback."""

    exit_code: int = EXIT_USAGE

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        parts = [self.what, f"where: {self.where}" if self.where else "", f"fix: {self.fix}" if self.fix else ""]
        return "; ".join(part for part in parts if part)


class UsageError(HalfbyteError):
    """An invalid command, option or argument."""


class RecipeError(HalfbyteError):
    """A recipe with missing or unknown keys, or with invalid values."""


class CheckpointError(HalfbyteError):
    """A checkpoint whose files are inconsistent."""


class TensorError(HalfbyteError):
    """A tensor whose values, shape or dtype its format cannot represent."""


class CheckFailedError(HalfbyteError):
    """A check that ran and failed."""

    exit_code = EXIT_CHECK_FAILED


class MachineError(HalfbyteError):
    """A missing resource of this machine: memory, disk, a GPU or a library."""

    exit_code = EXIT_MACHINE


class InterruptedRunError(HalfbyteError):
    """A run that was interrupted with Ctrl-C and can be resumed."""

    exit_code = EXIT_INTERRUPTED
