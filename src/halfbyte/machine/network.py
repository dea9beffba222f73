"""What an error of a request says: whether any answer came, and how long the server asks to wait."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Any


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error is about, if it is about one."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def no_answer(error: BaseException) -> bool:
    """Whether no answer came: httpx's errors of transport, under whichever name it is installed."""
    bases = {base.__name__ for base in type(error).__mro__}
    return "TransportError" in bases or isinstance(error, (ConnectionError, TimeoutError))


def retry_after(error: BaseException) -> float | None:
    """Return how many seconds the server asks to wait, if it does: a number, or a date."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    asked = headers.get("retry-after")
    try:
        return max(float(asked), 0.0)
    except (TypeError, ValueError):
        pass
    try:
        return max(parsedate_to_datetime(asked).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError):
        return None
