"""A test server that ignores disconnecting clients instead of printing to stderr."""

from http.server import ThreadingHTTPServer
from typing import Any


class QuietServer(ThreadingHTTPServer):
    """Serves each request in a thread that ends with the tests."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a thread may outlive its test and would print into the next one."""
