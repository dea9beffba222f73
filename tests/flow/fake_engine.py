"""A fake engine for faults that a real one cannot produce: `python fake_engine.py PORT FAULT...`.

It writes vLLM's log lines, starts a child process in its own session (as engine cores do), and answers /health like
vLLM, unless a fault changes that. The child writes its process id to the log.
"""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time

BELOW = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(600)"


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def main(port: int, faults: list[str]) -> None:
    if "deaf" in faults:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    below = subprocess.Popen([sys.executable, "-c", BELOW], start_new_session=True)
    print(f"processes {os.getpid()} {below.pid}", flush=True)
    print("INFO 11-15 18:00:00 [runner.py:1] Starting to load model x...", flush=True)
    if "control" in faults:
        print("ValueError: \x1b]0;owned\x07\x1b[31mred\x1b[0m \u202eleft\x9b2J \x00zero\b\b\x7f", flush=True)
        sys.exit(1)
    if "endless" in faults:
        for _ in range(40):
            sys.stdout.write("x" * 100_000)
        sys.stdout.flush()
    if "hangs" in faults:
        time.sleep(600)
    http.server.ThreadingHTTPServer.allow_reuse_port = "shares" in faults  # as vLLM's does
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Health)
    if "dies" in faults:
        threading.Timer(0.5, lambda: (print("RuntimeError: out of ideas", flush=True), os._exit(7))).start()
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
