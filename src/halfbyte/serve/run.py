"""Start an engine, wait until it answers, hand its URL on, and end it with everything that it started."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from halfbyte.errors import EXIT_MACHINE, HalfbyteError, MachineError
from halfbyte.serve.boot_time import VARIABLE, Boot, cached_before, tell
from halfbyte.serve.engine_log import EngineLog
from halfbyte.serve.engine_process import EngineProcess, how_it_ended
from halfbyte.serve.front import Front
from halfbyte.serve.installed import engine_environment
from halfbyte.serve.known_errors import known_error
from halfbyte.serve.ports import own_listener, taken
from halfbyte.serve.stop_signals import Stopped, stop_signals
from halfbyte.serve.then import Then
from halfbyte.terminal.console import Output, StatusLine

POLL_S = 0.2
ANSWERS_WITHIN_S = 5.0
_ANSWER_NBYTES = 1 << 20
# Compiling and capturing can be quiet for minutes, and a terabyte is read in half an hour: only a log that stands still
# for long means that nothing will come.
SILENT_S = 1800.0


def run_engine(  # noqa: PLR0913 - what a launch consists of
    command: Sequence[str],
    environment: Mapping[str, str],
    url: str,
    *,
    log: Path,
    out: Output,
    served_name: str,
    then: Then | None = None,
    hub: bool = False,
    front: Front | None = None,
    silent_s: float = SILENT_S,
    patience: float = 1.0,
) -> int:
    """Start an engine and wait until it is healthy; then call `then`, or serve until Ctrl-C. Return the exit code.

    `environment` is what the engine needs beside ours; with `hub` it may load files from the Hub. The URL of a `front`
    is said and handed on in place of the engine's. An engine that does not start, or ends, is a MachineError.
    """
    whole = engine_environment(Path(command[0]), environment, hub=hub)
    cached, begin = cached_before(command), time.monotonic()
    engine = EngineProcess(command, whole, log, patience=patience)  # which refuses a log that cannot be written
    with stop_signals(engine.kill):
        try:
            out.note(f"starting {url}, log: {log}")
            wait_until_healthy(engine, url, EngineLog(log), served_name, out=out, silent_s=silent_s)
            shown = front or Front(url)
            tell(Boot(shown.url, round(time.monotonic() - begin, 1), cached))
            if then is None:
                code = _serve(engine, shown, log, out, served_name)
            else:
                code = _hand_on(engine, url, log, out, lambda: then(shown.url))
        except Stopped as stopped:
            out.note(f"{stopped}; ending the engine (once more to kill it)")
            code = stopped.exit_code
        finally:
            _end(engine, out)
    return code


def wait_until_healthy(
    engine: EngineProcess, url: str, log: EngineLog, served_name: str, *, out: Output, silent_s: float = SILENT_S
) -> None:
    """Wait until the engine answers; say meanwhile how far it is.

    Raise MachineError if it ends, or stands still, or if another server has its port.
    """
    start = heard = time.monotonic()
    with out.waiting() as line:
        while not _answers(engine, url, served_name):
            code = engine.exit_code()
            grew = log.follow()
            if code is not None:
                raise failed(log, f"the engine did not start: {how_it_ended(code)}")
            now = time.monotonic()
            heard = now if grew else heard
            if now - heard > silent_s:
                what = f"the engine does not answer, and its log stands still for {silent_s:.0f} s"
                raise failed(log, what)
            _say_how_far(line, log, now - start, now - heard)
            time.sleep(POLL_S)
        line.show("ready", time.monotonic() - start)


def _answers(engine: EngineProcess, url: str, served_name: str) -> bool:
    """Return whether the engine itself answers that it is well: anybody can listen on a port and say so."""
    port = urlsplit(url).port or 80
    own = own_listener(port, engine.processes)
    if own is None and healthy(url):  # no /proc: its model's name must do
        if served_name not in served_models(url):
            raise taken(port)
        return engine.exit_code() is None
    return bool(own) and healthy(url)


def healthy(url: str) -> bool:
    """Return whether a server answers that it is well."""
    return _got(url, "/health") is not None


def served_models(url: str) -> list[str]:
    """Return the names of the models that a server says it has."""
    try:
        return [str(row["id"]) for row in json.loads(_got(url, "/v1/models") or b"")["data"]]
    except (ValueError, LookupError, TypeError):  # it is no such server
        return []


def _got(url: str, path: str) -> bytes | None:
    """Return what a server answers; None if it does not. No proxy is asked: the server is on this machine."""
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


def failed(log: EngineLog, what: str) -> MachineError:
    """Return the error of an engine that failed: its own words, and the cause and remedy if they are known."""
    log.follow()
    said, lines = log.error(), log.lines()
    known = known_error(said, lines)
    text = what + (f"\n{said}" if said else "\n(its log is empty)") + (f"\ncause: {known.cause}" if known else "")
    return MachineError(text, where=str(log.path), fix=known.fix if known else "read the end of the log")


def _say_how_far(line: StatusLine, log: EngineLog, seconds: float, silent: float) -> None:
    minutes = int(silent // 60)
    line.show(log.phase + (f" (no new log line for {minutes} min)" if minutes else ""), seconds)


def _serve(engine: EngineProcess, front: Front, path: Path, out: Output, served_name: str) -> int:
    """Say where it listens and how to try it; return only when the engine ends by itself, which is an error."""
    body = json.dumps({"model": served_name, "messages": [{"role": "user", "content": "Hello!"}]})
    ask = f"curl {front.url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    value = {"url": front.url, "model": served_name, "log": str(path)}
    out.facts({**value, "boot": os.environ.get(VARIABLE)}, list(value.items()))
    out.note(f"try: {ask}")  # one line, however narrow the terminal: it is there to be copied
    out.note("Ctrl-C ends it")
    sys.stdout.flush()  # into a pipe too: from now on nothing more is printed
    while engine.exit_code() is None:
        if front.ended():
            what = "the guard before the engine ended"
            raise MachineError(what, where=front.url, fix="start it again, or leave out --guard")
        time.sleep(POLL_S)
    raise _ended_while_serving(engine, path)


def _hand_on(engine: EngineProcess, url: str, path: Path, out: Output, then: Callable[[], int]) -> int:
    """Return the exit code of what is done with the engine; one that ended meanwhile is never a success."""
    code = then()
    if engine.exit_code() is None and (code == 0 or healthy(url)):
        return code
    out.error(_ended_while_serving(engine, path))
    return code or EXIT_MACHINE


def _ended_while_serving(engine: EngineProcess, path: Path) -> HalfbyteError:
    code = engine.exit_code()
    how = "no longer answers" if code is None else f"ended while serving: {how_it_ended(code)}"
    return failed(EngineLog(path), f"the engine {how}")


def _end(engine: EngineProcess, out: Output) -> None:
    """Stop the engine; a signal that comes now for the first time does not keep us from it."""
    try:
        left = engine.stop()
    except Stopped:
        left = engine.stop()
    if left:
        processes = ", ".join(map(str, left))
        out.note(f"still there, and not to be ended: process {processes} (waiting in the kernel, for a driver or disk)")
