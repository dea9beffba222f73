"""How we start Python again: never with modules from the folder we are in, which may be a stranger's checkpoint.

`python -m` and `python -c` look there first; a `torch.py` beside the weights would be ours. Python 3.10 has no such
option.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "PYTHONSAFEPATH"  # the same for all children, theirs included
OWN_PYTHON = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()))


def distrust_folder() -> None:
    """Take the current folder out of the path of this process, where `python -m` has put it, and of its children's."""
    os.environ.setdefault(VARIABLE, "1")
    here = os.path.realpath(os.getcwd())  # noqa: PTH109 - as sys.path spells it
    home = os.path.realpath(Path(__file__).parents[2])  # where this package lies
    if sys.path and os.path.realpath(sys.path[0] or here) == here and here != home:
        del sys.path[0]
