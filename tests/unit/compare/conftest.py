"""The whole models of transformers are the forward's tests'."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "forward"))
