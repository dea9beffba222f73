"""A defect of vLLM's CPU build, cured: it looks through all modules for kernels, and dies of an object of llvmlite's.

`vllm.triton_utils.dispatcher._rebind_kernels` reads the attributes of everything that any module names, and llvmlite's
`lib` answers with an object that has none (`'_lib_fn_wrapper' object has no attribute 'get'`). vLLM's own Kimi model
loads numba, and with it llvmlite, where it is installed; beside halfbyte it always is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


def hide_llvmlite_from_scan(dispatcher: Any) -> None:
    """Let vLLM's scan pass llvmlite by; a vLLM that scans nothing, or was cured before, is left as it is."""
    scan: Callable[..., Any] | None = getattr(dispatcher, "_rebind_kernels", None)
    if scan is None or hasattr(scan, "__wrapped__"):
        return

    @wraps(scan)
    def without_llvmlite(*given: Any) -> Any:
        hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "llvmlite"}
        for name in hidden:
            del sys.modules[name]
        try:
            return scan(*given)
        finally:
            sys.modules.update(hidden)

    dispatcher._rebind_kernels = without_llvmlite
