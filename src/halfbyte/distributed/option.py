"""The option that spreads a run over machines; what it needs is imported when it runs."""

from __future__ import annotations

import click

ray_option = click.option("--ray", metavar="ADDRESS", help="Spread the work over a Ray cluster: its address, auto (of "
                          "RAY_ADDRESS), or local, which starts one here. Same bytes.")  # fmt: skip
