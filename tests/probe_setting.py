"""The setting of a probe in tests: one or two scripted servers, and the questions of one section."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

from scripted_server import ScriptedServer

from halfbyte.endpoint.client import Endpoint
from halfbyte.probe.client import Client, Trace
from halfbyte.probe.context import Lengths
from halfbyte.probe.probe import Setting
from halfbyte.probe.profiles import load_profile


@contextmanager
def setting_of(folder, say, section: dict[str, Any], *, against=None, seed=0, tool_cases=None, profile="mini"):
    """Yield a setting whose client calls `say`; `section` has questions by name, in place of the profile's."""
    base = load_profile(profile)
    chosen = base.model_copy(update={"questions": {**base.questions, **section}})
    servers = [ScriptedServer(one) for one in (say, against) if one]
    with Trace(folder / "probe.jsonl") as trace:
        clients = [Client(Endpoint(one.url, 10), "m", trace, chosen, seed) for one in servers]
        lengths = Lengths(clients[0], chosen, 4096)
        reference = clients[1] if against else None
        try:
            yield Setting(clients[0], reference, lengths, chosen, seed, None, tool_cases), servers[0]
        finally:
            for one in servers:
                one.close()
