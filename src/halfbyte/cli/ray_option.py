"""The --ray option."""

from __future__ import annotations

import click

ray_option = click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: its address, auto (from "
                          "RAY_ADDRESS), or local to start one here. The output bytes are the same.")  # fmt: skip
