"""`halfbyte serve --guard URL`: run the loop-stopping proxy until Ctrl-C."""

from __future__ import annotations

import asyncio

from halfbyte.endpoint.client import parse_url
from halfbyte.errors import UsageError
from halfbyte.options.declare import options_of
from halfbyte.options.serve import ServeOptions
from halfbyte.serve.loop_proxy.server import needs_aiohttp, serve_until_stopped
from halfbyte.serve.ports import HOST, held_port
from halfbyte.ui.console import Output

PORT = 8100
_ALLOWED = ("guard", "port")


def guard(out: Output, options: ServeOptions) -> None:
    """Check the options and run the proxy."""
    url = options.guard or ""
    _refuse_others(options, url)
    needs_aiohttp()
    server = parse_url(url, timeout_s=10.0).url
    with held_port(options.port or PORT) as port:
        if server in (f"http://{HOST}:{port}", f"http://localhost:{port}"):
            what = "the proxy cannot listen on its server's port"
            raise UsageError(what, where=f"--port {port}", fix="choose another --port")

        def ready() -> None:
            out.note(f"http://{HOST}:{port} forwards requests to {server} and stops loops; Ctrl-C to quit")

        asyncio.run(serve_until_stopped(out, server, port, ready))


def _refuse_others(options: ServeOptions, url: str) -> None:
    if not url:
        what = "--guard requires a server: a running one, or the one that --run starts"
        raise UsageError(what, where="--guard", fix="pass its URL, or use serve OUT --run --guard")
    if options.out_folder is not None:
        fix = f"to serve OUT behind the proxy: halfbyte serve {options.out_folder} --run --guard, without the URL"
        raise UsageError("--guard URL proxies a running server and cannot serve OUT", where="OUT", fix=fix)
    for name, row in options_of(ServeOptions).items():
        if getattr(options, name) and name not in _ALLOWED:
            raise UsageError(f"{row.flag} has no effect with --guard URL", where=row.flag, fix=f"omit {row.flag}")
