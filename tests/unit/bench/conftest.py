"""A small real HTTP server that returns what engines report about themselves."""

import json
import threading
from http.server import BaseHTTPRequestHandler

import pytest
from quiet_server import QuietServer


@pytest.fixture
def serve():
    """Return a function that serves pages by path and returns the URL."""
    running = []

    def start(pages: dict, key: str = "") -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if key and self.path.startswith("/v1") and self.headers["Authorization"] != f"Bearer {key}":
                    return self.send_error(401)
                body = pages.get(self.path)
                self.send_response(200 if body is not None else 404)
                self.end_headers()
                self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode() if body else b"")

            def log_message(self, *_):
                pass

        server = QuietServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()
