"""Warnings and log lines of libraries, which Python prints by itself, past our own printing: made harmless as well."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import Any

from halfbyte.terminal.harmless import harmless


def tame_libraries() -> None:
    """From here on, what any library of this process warns or logs acts on no terminal and shows no key."""
    written, make = warnings.formatwarning, logging.getLogRecordFactory()

    def formatted(*given: Any, **more: Any) -> str:
        return harmless(written(*given, **more))

    def record(*given: Any, **more: Any) -> logging.LogRecord:
        made = make(*given, **more)
        with contextlib.suppress(TypeError, ValueError, KeyError):  # values that do not fit: logging itself says so
            made.msg, made.args = harmless(made.getMessage()), None
        return made

    warnings.formatwarning = formatted
    logging.setLogRecordFactory(record)
