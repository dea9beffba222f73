"""Render a launch as a commented shell script, a `docker run` script and JSON, and its fit line by line.

Scripts take MODEL and PORT from the environment if set, and pass further arguments on to the engine.
"""

from __future__ import annotations

import ipaddress
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from halfbyte.checkpoint.atomic_write import disk_error, write_whole
from halfbyte.checkpoint.output_folder import refuse_unwritable, without_parts
from halfbyte.errors import UsageError
from halfbyte.evidence.launches import Launches
from halfbyte.serve.fit import Fit
from halfbyte.serve.launch import MODEL_IN_CONTAINER, Launch
from halfbyte.serve.memory_per_gpu import Share
from halfbyte.serve.settings import Setting
from halfbyte.ui.units import size

WRITTEN_BY = "written by `halfbyte serve`"
JSON_FILE = "serve.json"
_WIDTH = 118
_NEXT_LINE = "#   "  # prefix of a comment's continuation lines
_CACHE_VOLUME = "halfbyte-jit-cache:/root/.cache"  # compiled kernels of FlashInfer and vLLM, which take minutes
_EXECUTABLE = 0o755
_HOST, _EVERYWHERE = "--host", "0.0.0.0"

_NAME_WIDTH = 11


def script(launch: Launch) -> str:
    """Return a bash script that runs the engine in the foreground."""
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
    """Return a bash script that runs the engine's container in the foreground."""
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
        *_comment("The volume caches compiled kernels: only the first start spends minutes on tuning and compiling."),
        *reasons,
        *run,
    ]
    return "\n".join(lines) + "\n"


def docker_words(launch: Launch) -> list[str]:
    """Return the `docker run` command as a list of words, with the script's default model and port."""
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
    """Return the arguments without --host: in a container the engine listens on all addresses, docker limits access."""
    return [row for row in launch.arguments if row.flag != _HOST]


def _published(launch: Launch) -> str:
    """Return the address prefix for docker's -p, including the colon; empty for all addresses."""
    host = _host(launch)
    if host == _EVERYWHERE:
        return ""
    return f"[{host}]:" if ":" in host else f"{host}:"


def _host(launch: Launch) -> str:
    host = next((str(row.value) for row in launch.arguments if row.flag == _HOST), _EVERYWHERE)
    return "127.0.0.1" if host == "localhost" else host  # docker needs an IP address


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def docker_problem(launch: Launch) -> UsageError | None:
    """Return why this launch cannot run in docker, or None."""
    folder = launch.folder
    if folder is not None and ":" in str(folder):
        fix = "serve it from a folder without a colon, or without --docker"
        return UsageError("docker cannot mount a path with a colon", where=str(folder), fix=fix)
    if folder is not None and folder.is_dir() and any(path.is_symlink() for path in folder.iterdir()):
        fix = "copy it to a real folder (cp -rL), or let the engine load it with --hub"
        return UsageError("the files are symlinks that a container cannot follow", where=str(folder), fix=fix)
    if not _is_ip_address(_host(launch)):
        fix = "use an IP address, e.g. --set host=127.0.0.1"
        return UsageError(f"docker needs an IP address, not the host name '{_host(launch)}'", where="--set", fix=fix)
    if launch.draft is not None and Path(launch.draft).is_dir():
        fix = "use a draft's Hub name, or serve without --docker"
        return UsageError("the draft's folder is not mounted in the container", where=launch.draft, fix=fix)
    return None


def launch_record(launches: Sequence[Launch]) -> Launches:
    """Return the contents of serve.json, best launch first."""
    commands = [launch.record(None if docker_problem(launch) else docker_words(launch)) for launch in launches]
    return Launches(written_by=WRITTEN_BY, launches=tuple(commands))


def files(launches: Sequence[Launch]) -> dict[str, str]:
    """Return the files to write, by name: a script and a docker script for each engine, and the JSON."""
    texts: dict[str, str] = {}
    for launch in launches:
        texts[f"serve-{launch.engine}.sh"] = script(launch)
        if docker_problem(launch) is None:
            name = "docker-run.sh" if launch is launches[0] else f"docker-run-{launch.engine}.sh"
            texts[name] = docker_script(launch)
    texts[JSON_FILE] = launch_record(launches).as_bytes().decode()
    return texts


def write_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the files atomically; raise UsageError before writing any if a file of the same name is not ours."""
    refuse_unwritable(folder)
    for name in texts:
        path = folder / name
        if path.is_symlink() or (path.exists() and not _ours(path)):
            fix = "move it, or choose another folder"
            raise UsageError("will not overwrite a file that halfbyte did not write", where=str(path), fix=fix)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with without_parts(folder):
            for name, text in texts.items():
                write_whole(folder / name, text.encode())
                if name.endswith(".sh"):
                    (folder / name).chmod(_EXECUTABLE)
    except OSError as error:
        raise disk_error(error, folder, kept="written files") from None
    return [folder / name for name in texts]


def remove_stale(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Remove scripts that an earlier call wrote and that are not among these files; return their paths."""
    scripts = [path for pattern in ("serve-*.sh", "docker-run*.sh") for path in sorted(folder.glob(pattern))]
    stale = [path for path in scripts if path.name not in texts and not path.is_symlink() and _ours(path)]
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
    return WRITTEN_BY in head.replace(f"\n{_NEXT_LINE}", " ")  # the line may be wrapped


def _head(launch: Launch, what: str) -> Iterator[str]:
    yield "#!/usr/bin/env bash"
    yield from _comment(f"{what}; {WRITTEN_BY}.")
    yield from _comment("MODEL and PORT can be set in the environment; further arguments go to the engine.")
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
    """Return wrapped comment lines; control characters, which could end the comment, become spaces."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return textwrap.wrap(plain, _WIDTH, initial_indent="# ", subsequent_indent=_NEXT_LINE, break_on_hyphens=False)


def fit_lines(fit: Fit) -> list[str]:
    """Return one line per step: memory, weights, reserve, KV cache, tokens and verdict."""
    return [f"{name:{_NAME_WIDTH}}{text}".rstrip() for name, text in _rows(fit)]


def _rows(fit: Fit) -> Iterator[tuple[str, str]]:
    gpus, count = fit.gpus, fit.gpus.count
    budget = int(gpus.memory_nbytes * fit.utilization)
    how = fit.parallel.words(count)
    yield "memory", f"{size(gpus.memory_nbytes)} x {fit.utilization:g} = {size(budget)} on each GPU of {gpus} ({how})"
    yield from _sum("weights", fit.weights)
    if fit.draft:
        yield from _sum("draft", fit.draft)
    yield from _sum("reserve", fit.reserve)
    if fit.reserve_outside:
        yield "", f"outside the memory share, which leaves {size(gpus.memory_nbytes - budget)} for it"
    inside = (fit.weights, fit.draft, () if fit.reserve_outside else fit.reserve)
    used = [sum(share.nbytes for share in group) for group in inside if group]
    minus = " - ".join(size(nbytes) for nbytes in (budget, *used))
    yield "kv cache", f"{minus} = {size(fit.kv_nbytes)}"
    if fit.kv_tokens:
        yield "tokens", _tokens(fit)
    if fit.contexts:
        yield "contexts", f"{fit.kv_tokens:,} / {fit.context:,} = {fit.contexts:.2f} concurrent full-length requests"
    yield "verdict", "it fits" if fit.fits else f"does not fit: {fit.problem}; {fit.advice}"


def _sum(name: str, group: tuple[Share, ...]) -> Iterator[tuple[str, str]]:
    for share in group:
        yield name, _share(share)
        name = ""
    if len(group) > 1:
        yield "", f"total {size(sum(share.nbytes for share in group))}"


def _share(share: Share) -> str:
    why = f" ({share.why})" if share.why else ""
    if share.divisor == 1:
        return f"{share.name} {size(share.nbytes)}{why}"
    return f"{share.name} {size(share.of_nbytes)} / {share.divisor} = {size(share.nbytes)}{why}"


def _tokens(fit: Fit) -> str:
    assert fit.kv_tokens is not None
    dcp, copies = fit.parallel.decode_context, fit.gpus.count // fit.parallel.tensor_of(fit.gpus.count)
    per_gpu = fit.kv_tokens // (dcp * max(1, copies))
    text = f"{size(max(0, fit.kv_nbytes))} / {fit.kv_token_nbytes:,} bytes per token in {fit.kv_dtype} = {per_gpu:,}"
    text += f" in blocks of {fit.block}"
    times = [f"{dcp} by DCP"] if dcp > 1 else []
    times += [f"{copies} copies"] if copies > 1 else []
    return text + (f"; x {' x '.join(times)} = {fit.kv_tokens:,}" if times else "")
