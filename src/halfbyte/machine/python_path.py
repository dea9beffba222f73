"""Start Python subprocesses that do not import modules from the current folder, which may be an untrusted checkpoint.

`python -m` and `python -c` search the current folder first, so a `torch.py` there would be imported. `-P` turns that
off; Python 3.10 does not have it. `__main__` imports this module before the folder is removed, so it imports little.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "PYTHONSAFEPATH"  # inherited by all descendant processes
OWN_PYTHON = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()))


def remove_current_folder() -> None:
    """Remove the current folder, which `python -m` adds, from sys.path of this process and its subprocesses."""
    os.environ.setdefault(VARIABLE, "1")
    current = os.path.realpath(os.getcwd())  # noqa: PTH109 - as sys.path spells it
    home = os.path.realpath(Path(__file__).parents[2])  # the folder that contains this package
    if sys.path and os.path.realpath(sys.path[0] or current) == current and current != home:
        del sys.path[0]
