"""Classify HTTP client errors: status, missing response, Retry-After."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Any


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error, if it has one."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def no_answer(error: BaseException) -> bool:
    """Return whether there was no response: connection error, timeout, or transport error of any httpx package."""
    bases = {base.__name__ for base in type(error).__mro__}
    return "TransportError" in bases or isinstance(error, (ConnectionError, TimeoutError))


def retry_after(error: BaseException) -> float | None:
    """Return the server's Retry-After (a number or a date) in seconds, if present."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after")
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError):
        return None
