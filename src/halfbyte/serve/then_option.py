"""The option --then, whose help names the commands that this halfbyte has."""

from __future__ import annotations

import click

URL_COMMANDS = ("probe", "eval", "bench")  # those that take a URL


class ThenOption(click.Option):
    """An option whose help is written when it is asked for: the commands beside it are known only then."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and what it takes."""
        here = [name for name in URL_COMMANDS if name in commands_beside(ctx)]
        self.help = f"With --run: commands that get the URL once it answers ({', '.join(here) or 'none yet'})."
        return super().get_help_record(ctx)


def commands_beside(ctx: click.Context) -> list[str]:
    """Return the names of the commands of the group that a command belongs to."""
    group = ctx.parent.command if ctx.parent else None
    return list(group.commands) if isinstance(group, click.Group) else []
