"""A launch as text: a shell script with a comment above each setting, a `docker run` script, and JSON; and as files.

Scripts take MODEL and PORT from the environment where they are set, and hand further arguments on to the engine.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.folders import refuse_unwritable, without_parts
from halfbyte.serve.launch import MODEL_IN_CONTAINER, Launch
from halfbyte.serve.settings import Setting
from halfbyte.write import disk_error, write_whole

WRITTEN_BY = "written by `halfbyte serve`"
JSON_FILE = "serve.json"
_WIDTH = 118
_NEXT_LINE = "#   "  # before the second line of a comment
_CACHE_VOLUME = "halfbyte-jit-cache:/root/.cache"  # FlashInfer's and vLLM's compiled kernels: minutes at each start
_EXECUTABLE = 0o755
_HOST, _EVERYWHERE = "--host", "0.0.0.0"


def script(launch: Launch) -> str:
    """Return a bash script that starts the engine in front."""
    start = " ".join(_quoted(word) for word in launch.command)
    exports = [line for row in launch.environment for line in (*_why(row), f"export {_assignment(row)}")]
    lines = [
        *_head(launch, f"Serve {launch.name} with {launch.title} {launch.version} on {launch.gpus}"),
        *_variables(launch),
        *(["", *exports] if exports else []),
        "",
        *_arguments(launch),
        "",
        f'exec {start} "${{arguments[@]}}" {launch.port_flag} "$PORT" "$@"',
    ]
    return "\n".join(lines) + "\n"


def docker_script(launch: Launch) -> str:
    """Return a bash script that starts the engine's container in front."""
    problem = docker_problem(launch)
    if problem is not None:
        raise problem
    inside = MODEL_IN_CONTAINER if launch.folder is not None else "$MODEL"
    command = " ".join(f'"{inside}"' if word == "{model}" else shlex.quote(word) for word in launch.container_command)
    address = _published(launch)
    published = f'-p {shlex.quote(address) if address else ""}"$PORT:$PORT"'
    options = [" ".join(map(shlex.quote, launch.container.docker)), published]
    options += ['-v "$MODEL:/model:ro"'] if launch.folder is not None else []
    options += [f"-v {_CACHE_VOLUME}"]
    options += [f"-e {shlex.quote(f'{row.flag}={row.value}')}" for row in launch.environment]
    reasons = [line for row in launch.environment for line in _comment(f"{row.flag}: {_reason(row)}")]
    run = [
        "exec docker run --rm \\",
        *(f"  {option} \\" for option in options),
        f"  {shlex.quote(launch.container.image)} \\",
        f'  {command} "${{arguments[@]}}" {_HOST} {_EVERYWHERE} {launch.port_flag} "$PORT" "$@"',
    ]
    lines = [
        *_head(launch, f"Serve {launch.name} with {launch.title} {launch.version} in docker on {launch.gpus}"),
        *_variables(launch),
        "",
        *_arguments(replace(launch, arguments=tuple(_inside(launch)))),
        "",
        *_comment(
            "The volume keeps compiled kernels: the first start tunes and compiles for minutes, later ones do not."
        ),
        *reasons,
        *run,
    ]
    return "\n".join(lines) + "\n"


def docker_words(launch: Launch) -> list[str]:
    """Return `docker run` as a program gets it, with the model and the port that the script has as defaults."""
    mounted = launch.folder is not None
    options = [*launch.container.docker, "-p", f"{_published(launch)}{launch.port}:{launch.port}"]
    options += ["-v", f"{launch.model}:{MODEL_IN_CONTAINER}:ro"] if mounted else []
    options += ["-v", _CACHE_VOLUME]
    options += [word for row in launch.environment for word in ("-e", f"{row.flag}={row.value}")]
    model = MODEL_IN_CONTAINER if mounted else launch.model
    start = [model if word == "{model}" else word for word in launch.container_command]
    arguments = [word for row in _inside(launch) for word in row.words]
    listen = [_HOST, _EVERYWHERE, launch.port_flag, str(launch.port)]
    return ["docker", "run", "--rm", *options, launch.container.image, *start, *arguments, *listen]


def _inside(launch: Launch) -> list[Setting]:
    """Return the arguments in a container, where the engine listens to all: docker decides who reaches it."""
    return [row for row in launch.arguments if row.flag != _HOST]


def _published(launch: Launch) -> str:
    """Return the address at which docker shall publish the port, with its colon; nothing for all of them."""
    host = _host(launch)
    if host == _EVERYWHERE:
        return ""
    return f"[{host}]:" if ":" in host else f"{host}:"


def _host(launch: Launch) -> str:
    host = next((str(row.value) for row in launch.arguments if row.flag == _HOST), _EVERYWHERE)
    return "127.0.0.1" if host == "localhost" else host  # docker takes no names


def _is_number_of_machine(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def docker_problem(launch: Launch) -> UsageError | None:
    """Return why a container would not see the files, or None."""
    folder = launch.folder
    if folder is not None and ":" in str(folder):
        fix = "serve it from a folder without a colon, or without --docker"
        return UsageError("docker cannot mount a path with a colon", where=str(folder), fix=fix)
    if folder is not None and folder.is_dir() and any(path.is_symlink() for path in folder.iterdir()):
        fix = "copy it to a real folder (cp -rL), or let the engine load it with --hub"
        return UsageError("the folder's files are links that a container does not see", where=str(folder), fix=fix)
    if not _is_number_of_machine(_host(launch)):
        fix = "give its number, as in --set host=127.0.0.1"
        return UsageError(f"docker publishes at no name, and host is '{_host(launch)}'", where="--set", fix=fix)
    if launch.draft is not None and Path(launch.draft).is_dir():
        fix = "name the draft on the Hub, or serve without --docker"
        return UsageError("a container does not see the draft's folder", where=launch.draft, fix=fix)
    return None


def as_json(launches: Sequence[Launch]) -> dict[str, Any]:
    """Return all launches as plain data; the first is the one to try first."""
    rows = [
        {**launch.as_dict(), "docker": None if docker_problem(launch) else docker_words(launch)} for launch in launches
    ]
    return {"written_by": WRITTEN_BY, "launches": rows}


def files(launches: Sequence[Launch]) -> dict[str, str]:
    """Return the files of a folder: for each engine a script and one for docker, and all of it as JSON."""
    found: dict[str, str] = {}
    for launch in launches:
        found[f"serve-{launch.engine}.sh"] = script(launch)
        if docker_problem(launch) is None:
            name = "docker-run.sh" if launch is launches[0] else f"docker-run-{launch.engine}.sh"
            found[name] = docker_script(launch)
    found[JSON_FILE] = json.dumps(as_json(launches), indent=2, ensure_ascii=False) + "\n"
    return found


def write_files(folder: Path, found: Mapping[str, str]) -> list[Path]:
    """Write the files whole; one of the same name that we did not write is left alone, and nothing is written."""
    refuse_unwritable(folder)
    for name in found:
        path = folder / name
        if path.is_symlink() or (path.exists() and not _ours(path)):
            fix = "move it away, or give another folder"
            raise UsageError("a file that halfbyte did not write is in the way", where=str(path), fix=fix)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with without_parts(folder):
            for name, text in found.items():
                write_whole(folder / name, text.encode())
                if name.endswith(".sh"):
                    (folder / name).chmod(_EXECUTABLE)
    except OSError as error:
        raise disk_error(error, folder, kept="written files") from None
    return [folder / name for name in found]


def remove_stale(folder: Path, found: Mapping[str, str]) -> list[Path]:
    """Remove the scripts of an earlier call that are not among these files, and return them; only ours."""
    there = [path for pattern in ("serve-*.sh", "docker-run*.sh") for path in sorted(folder.glob(pattern))]
    stale = [path for path in there if path.name not in found and not path.is_symlink() and _ours(path)]
    try:
        for path in stale:
            path.unlink()
    except OSError as error:
        raise disk_error(error, folder, kept="written files") from None
    return stale


def _ours(path: Path) -> bool:
    if not path.is_file():
        return False
    head = path.read_text(encoding="utf-8", errors="replace")[:4096]
    return WRITTEN_BY in head.replace(f"\n{_NEXT_LINE}", " ")  # a long name may have wrapped the line


def _head(launch: Launch, what: str) -> Iterator[str]:
    yield "#!/usr/bin/env bash"
    yield from _comment(f"{what}; {WRITTEN_BY}.")
    yield from _comment("MODEL and PORT may be set outside; further arguments go to the engine.")
    for note in launch.warnings:
        yield "#"
        yield from _comment(f"! {note.text} ({note.source})")
    if launch.fit is not None:
        yield "#"
        yield from (f"# {line}" for line in launch.fit.lines())
    yield "set -euo pipefail"
    yield ""


def _variables(launch: Launch) -> Iterator[str]:
    yield f"default_model={shlex.quote(launch.model)}"
    yield "MODEL=${MODEL:-$default_model}"
    yield f"PORT=${{PORT:-{launch.port}}}"


def _arguments(launch: Launch) -> Iterator[str]:
    yield "arguments=("
    for row in launch.arguments:
        yield from (f"  {line}" for line in _why(row))
        yield "  " + " ".join(map(shlex.quote, row.words))
    yield ")"


def _quoted(word: str) -> str:
    return '"$MODEL"' if word == "{model}" else shlex.quote(word)


def _assignment(row: Setting) -> str:
    return f"{row.flag}={shlex.quote(str(row.value))}"


def _why(row: Setting) -> list[str]:
    return _comment(_reason(row))


def _reason(row: Setting) -> str:
    return f"{row.reason} ({row.source})"


def _comment(text: str) -> list[str]:
    """Return comment lines; a line break in a name or a path cannot end the comment."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return textwrap.wrap(plain, _WIDTH, initial_indent="# ", subsequent_indent=_NEXT_LINE, break_on_hyphens=False)
