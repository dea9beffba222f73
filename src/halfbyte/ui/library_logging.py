"""Escape the warnings and log lines of libraries, which Python prints directly."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import Any

from halfbyte.ui.escape import harmless


def tame_libraries() -> None:
    """Escape all warnings and log records of this process, and remove API keys from them."""
    format_warning, make_record = warnings.formatwarning, logging.getLogRecordFactory()

    def safe_warning(*args: Any, **options: Any) -> str:
        return harmless(format_warning(*args, **options))

    def safe_record(*args: Any, **options: Any) -> logging.LogRecord:
        record = make_record(*args, **options)
        with contextlib.suppress(TypeError, ValueError, KeyError):  # logging itself reports mismatched arguments
            record.msg, record.args = harmless(record.getMessage()), None
        return record

    warnings.formatwarning = safe_warning
    logging.setLogRecordFactory(safe_record)
