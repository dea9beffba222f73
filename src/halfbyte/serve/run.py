"""Start an engine, wait until it is healthy, run the follow-up, and stop all its processes.

The first Ctrl-C, SIGTERM or SIGHUP stops the engine gracefully, the second kills it. Only the first signal raises
`Stopped`, so later ones cannot interrupt the shutdown.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from halfbyte.errors import EXIT_MACHINE, HalfbyteError, MachineError
from halfbyte.serve.boot_time import VARIABLE, boot_time_of, cached_before, record_boot
from halfbyte.serve.engine_log import EngineLog, known_error
from halfbyte.serve.engine_process import EngineProcess, FollowUp, describe_exit
from halfbyte.serve.installed import engine_environment
from halfbyte.serve.ports import ProxyAddress, own_listener, port_taken
from halfbyte.ui.console import Output, StatusLine

POLL_S = 0.2
ANSWERS_WITHIN_S = 5.0
_ANSWER_NBYTES = 1 << 20
# Compiling and capturing can log nothing for minutes, and reading a terabyte takes half an hour.
SILENT_S = 1800.0

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_engine(  # noqa: PLR0913 - the parts of a launch
    command: Sequence[str],
    environment: Mapping[str, str],
    url: str,
    *,
    log: Path,
    out: Output,
    served_name: str,
    then: FollowUp | None = None,
    hub: bool = False,
    proxy: ProxyAddress | None = None,
    silent_s: float = SILENT_S,
    patience: float = 1.0,
) -> int:
    """Start an engine and wait until it is healthy; then call `then`, or serve until Ctrl-C. Return the exit code.

    `environment` is added to ours. With `hub` the engine may load files from the Hub. The URL of `proxy` is
    printed and passed to `then` instead of the engine's. Raise MachineError if the engine fails to start or exits.
    """
    full_environment = engine_environment(Path(command[0]), environment, hub=hub)
    cached, start = cached_before(command), time.monotonic()
    engine = EngineProcess(command, full_environment, log, patience=patience)
    with stop_signals(engine.kill):
        try:
            out.note(f"starting {url}, log: {log}")
            wait_until_healthy(engine, url, EngineLog(log), served_name, out=out, silent_s=silent_s)
            shown = proxy or ProxyAddress(url)
            record_boot(boot_time_of(shown.url, round(time.monotonic() - start, 1), cached))
            if then is None:
                code = _serve(engine, shown, log, out, served_name)
            else:
                code = _follow_up(engine, url, log, out, lambda: then(shown.url))
        except Stopped as stopped:
            out.note(f"{stopped}; stopping the engine (repeat to kill it)")
            code = stopped.exit_code
        finally:
            _stop(engine, out)
    return code


def wait_until_healthy(
    engine: EngineProcess, url: str, log: EngineLog, served_name: str, *, out: Output, silent_s: float = SILENT_S
) -> None:
    """Wait until the engine is healthy and show its progress.

    Raise MachineError if it exits or hangs, or if another server has its port.
    """
    start = last_output = time.monotonic()
    with out.waiting() as line:
        while not _is_healthy(engine, url, served_name):
            code = engine.exit_code()
            grew = log.follow()
            if code is not None:
                raise engine_error(log, f"the engine did not start: {describe_exit(code)}")
            now = time.monotonic()
            last_output = now if grew else last_output
            if now - last_output > silent_s:
                what = f"the engine does not respond and has logged nothing for {silent_s:.0f} s"
                raise engine_error(log, what)
            _show_progress(line, log, now - start, now - last_output)
            time.sleep(POLL_S)
        line.show("ready", time.monotonic() - start)


def _is_healthy(engine: EngineProcess, url: str, served_name: str) -> bool:
    """Return whether the engine is healthy, and not another server on the same port."""
    port = urlsplit(url).port or 80
    own = own_listener(port, engine.processes)
    if own is None and healthy(url):  # without /proc, identify it by the name of its model
        if served_name not in served_models(url):
            raise port_taken(port)
        return engine.exit_code() is None
    return bool(own) and healthy(url)


def healthy(url: str) -> bool:
    """Return whether a server passes its health check."""
    return _get(url, "/health") is not None


def served_models(url: str) -> list[str]:
    """Return the names of the models that a server lists."""
    try:
        return [str(row["id"]) for row in json.loads(_get(url, "/v1/models") or b"")["data"]]
    except (ValueError, LookupError, TypeError):  # not an OpenAI-compatible server
        return []


def _get(url: str, path: str) -> bytes | None:
    """Return the body of a successful response, else None. Proxy settings do not apply: the server is local."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=ANSWERS_WITHIN_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read(_ANSWER_NBYTES) if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def engine_error(log: EngineLog, what: str) -> MachineError:
    """Return the error for a failed engine, with its own error message and the known cause and fix."""
    log.follow()
    message, lines = log.error(), log.lines()
    known = known_error(message, lines)
    text = what + (f"\n{message}" if message else "\n(its log is empty)") + (f"\ncause: {known.cause}" if known else "")
    return MachineError(text, where=str(log.path), fix=known.fix if known else "read the end of the log")


def _show_progress(line: StatusLine, log: EngineLog, seconds: float, silent: float) -> None:
    minutes = int(silent // 60)
    line.show(log.phase + (f" (no new log line for {minutes} min)" if minutes else ""), seconds)


def _serve(engine: EngineProcess, proxy: ProxyAddress, path: Path, out: Output, served_name: str) -> int:
    """Print the URL and an example request; raise MachineError when the engine or its proxy exits."""
    body = json.dumps({"model": served_name, "messages": [{"role": "user", "content": "Hello!"}]})
    ask = f"curl {proxy.url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    value = {"url": proxy.url, "model": served_name, "log": str(path)}
    out.facts({**value, "boot": os.environ.get(VARIABLE)}, list(value.items()))
    out.note(f"try: {ask}")  # not wrapped, so that it can be copied
    out.note("Ctrl-C stops it")
    sys.stdout.flush()  # a pipe needs it: nothing more is printed
    while engine.exit_code() is None:
        if proxy.ended():
            what = "the loop-stopping proxy exited"
            raise MachineError(what, where=proxy.url, fix="start it again, or leave out --guard")
        time.sleep(POLL_S)
    raise _exited_while_serving(engine, path)


def _follow_up(engine: EngineProcess, url: str, path: Path, out: Output, then: Callable[[], int]) -> int:
    """Return the exit code of `then`; if the engine exits during it, the result is never a success."""
    code = then()
    if engine.exit_code() is None and (code == 0 or healthy(url)):
        return code
    out.error(_exited_while_serving(engine, path))
    return code or EXIT_MACHINE


def _exited_while_serving(engine: EngineProcess, path: Path) -> HalfbyteError:
    code = engine.exit_code()
    how = "no longer responds" if code is None else f"exited while serving: {describe_exit(code)}"
    return engine_error(EngineLog(path), f"the engine {how}")


def _stop(engine: EngineProcess, out: Output) -> None:
    """Stop the engine, even if the first signal arrives during the shutdown."""
    try:
        left = engine.stop()
    except Stopped:
        left = engine.stop()
    if left:
        processes = ", ".join(map(str, left))
        out.note(f"still running after SIGKILL: process {processes} (blocked in the kernel by a driver or disk)")


class Stopped(BaseException):
    """A stop requested by a signal; `exit_code` is the shell's code for that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextmanager
def stop_signals(at_once: Callable[[], None]) -> Generator[None]:
    """Raise Stopped on the first signal; call `at_once` on each further one."""
    if threading.current_thread() is not threading.main_thread():  # handlers can only be set in the main thread
        yield
        return
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            raise Stopped(number)
        at_once()

    # Signals ignored by the parent (nohup, a shell's background job) stay ignored.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
