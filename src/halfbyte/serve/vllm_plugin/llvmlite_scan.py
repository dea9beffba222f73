"""Work around a crash of vLLM's CPU build when it scans all modules for kernels and llvmlite is loaded.

`vllm.triton_utils.dispatcher._rebind_kernels` reads attributes of every object in every module, and fails on llvmlite's
`lib` (`'_lib_fn_wrapper' object has no attribute 'get'`). vLLM's Kimi model imports numba, and with it llvmlite, if
installed. numba is a dependency of halfbyte.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


def hide_llvmlite_from_scan(dispatcher: Any) -> None:
    """Hide llvmlite from vLLM's scan; do nothing if vLLM has no scan or is already patched."""
    scan: Callable[..., Any] | None = getattr(dispatcher, "_rebind_kernels", None)
    if scan is None or hasattr(scan, "__wrapped__"):
        return

    @wraps(scan)
    def without_llvmlite(*args: Any) -> Any:
        hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "llvmlite"}
        for name in hidden:
            del sys.modules[name]
        try:
            return scan(*args)
        finally:
            sys.modules.update(hidden)

    dispatcher._rebind_kernels = without_llvmlite
