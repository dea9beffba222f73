"""Every error a user can meet: what happened, where, and what to type next."""

from __future__ import annotations

EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_MACHINE = 3
EXIT_INTERRUPTED = 130


class HalfbyteError(Exception):
    """The base of all errors that the command line shows as one sentence, without a traceback."""

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
    """A command, option or argument that cannot be right."""


class RecipeError(HalfbyteError):
    """A recipe that does not say what it must, or says what nobody reads."""


class CheckpointError(HalfbyteError):
    """A checkpoint whose files contradict themselves or each other."""


class TensorError(HalfbyteError):
    """A tensor whose values, shape or dtype its format cannot carry."""


class CheckFailedError(HalfbyteError):
    """A check ran and its answer is no."""

    exit_code = EXIT_CHECK_FAILED


class MachineError(HalfbyteError):
    """This machine lacks something: memory, disk, a GPU, a library."""

    exit_code = EXIT_MACHINE


class InterruptedRunError(HalfbyteError):
    """Ctrl-C in a run that can go on later."""

    exit_code = EXIT_INTERRUPTED
