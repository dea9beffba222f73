"""A server for tests whose clients hang up: what its threads think of that does not belong on the test's stderr."""

from http.server import ThreadingHTTPServer
from typing import Any


class QuietServer(ThreadingHTTPServer):
    """Serves each request in a thread that ends with the tests."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a thread may outlive its test, and would print into the next one."""
