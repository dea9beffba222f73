"""The `halfbyte serve` command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from halfbyte.cli.command import command
from halfbyte.cli.usage import commands_beside
from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.options.declare import options_of
from halfbyte.options.serve import URL_COMMANDS, ServeOptions
from halfbyte.ui.console import Column, Output
from halfbyte.ui.escape import pasted
from halfbyte.ui.suggest import did_you_mean

if TYPE_CHECKING:
    from halfbyte.serve.checkpoint_facts import Served
    from halfbyte.serve.gpus import Gpus
    from halfbyte.serve.launch import Launch
    from halfbyte.serve.launch_facts import LaunchOptions

_SOME_URL = "http://127.0.0.1:8000"  # placeholder: parsing checks only the form of the URL
_GUARD_PORT = 8100  # of the loop-stopping proxy
_GUARD_OPTIONS = ("guard", "port")  # allowed with `--guard URL`
SCRIPTS = "serve"  # folder under halfbyte/ in an output folder


@command("serve", ServeOptions, example="halfbyte serve OUT --gpus 8xB200")
def serve_command(out: Output, options: ServeOptions) -> None:
    """Print or start a serving command for OUT.

    Prints the reason for each setting. Reads only headers, and starts nothing without --run.
    """
    ctx, out_folder = click.get_current_context(), options.out_folder
    if options.guard or (options.guard is not None and not options.run):
        return _guard(out, options)
    if options.like is not None:
        return _show_published(ctx, options.like)
    if out_folder is None:
        raise UsageError("no checkpoint specified", where="OUT", fix="pass its folder, or --like NAME")
    if str(out_folder).startswith("hf:/"):
        name = str(out_folder).removeprefix("hf:/").strip("/")
        fix = f"hf download {name} --local-dir OUT, then halfbyte serve OUT --hub {name}@COMMIT"
        raise UsageError("OUT must be a local folder; --hub names its Hub repository", where="OUT", fix=fix)
    _refuse_alone(options)
    from halfbyte.serve.checkpoint_facts import audited, served, without_tokenizer

    checkpoint = served(out_folder)
    notes = [*without_tokenizer(out_folder), *(audited(out_folder) if checkpoint.quantization != "bf16" else [])]
    if options.run:
        for warning in (note for note in notes if note.startswith("!")):
            out.note(warning)
        return ctx.exit(_run(out, checkpoint, options, commands_beside(ctx)))
    return _show(out, checkpoint, options, notes)


def _show_published(ctx: click.Context, name: str) -> None:
    from halfbyte.serve.launch_data import published

    out: Output = ctx.obj
    row = published(name)
    _refuse_beside_like(ctx)
    out.text(row.command, {"name": name, "command": row.command, "source": row.source, "note": row.note})
    out.note(f"{row.title}: {row.source}, on {row.gpus}" + (f". {row.note}" if row.note else ""))
    out.hint(f"halfbyte serve OUT --gpus '{row.gpus}', for halfbyte's own command")


def _refuse_beside_like(ctx: click.Context) -> None:
    """Refuse options that would have no effect on a command that is printed verbatim."""
    for parameter in ctx.command.params:
        from_user = ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
        if from_user and parameter.name != "like":
            name = max(parameter.opts, key=len) if isinstance(parameter, click.Option) else "OUT"
            what = f"{name} has no effect with --like, which prints a published command verbatim"
            raise UsageError(what, where=name, fix=f"omit {name}, or omit --like for halfbyte's own command")


def _refuse_alone(options: ServeOptions) -> None:
    """Refuse options whose required option is missing, and conflicting ones."""
    for name, needed in (("emulate", "run"), ("then", "run"), ("exec", "run"), ("log", "run"),
                         ("activations", "emulate")):  # fmt: skip
        if getattr(options, name) not in (None, False, ()) and not getattr(options, needed):
            raise UsageError(f"--{name} requires --{needed}", where=f"--{name}", fix=f"add --{needed}")
    if options.exec is not None and not options.exec.strip():
        raise UsageError(
            "--exec is empty", where="--exec", fix="pass a command, e.g. --exec 'curl $HALFBYTE_URL/v1/models'"
        )
    if options.then and options.exec:
        raise UsageError("--then and --exec cannot be combined", where="--exec", fix="omit one of them")


def _launch_options(options: ServeOptions, engine: str | None = None, version: str | None = None) -> LaunchOptions:
    from halfbyte.serve.launch_facts import LaunchOptions

    same = ("docker", "context", "concurrency", "tp", "dcp", "ep", "draft", "text_only", "port", "hub", "emulate",
            "activations", "settings")  # fmt: skip
    return LaunchOptions(engine=engine, version=version, **{name: getattr(options, name) for name in same})


def _engine(options: ServeOptions) -> tuple[str | None, str | None]:
    """Split `vllm==0.25.1` into engine and version."""
    name, _, version = (options.engine or "").partition("==")
    return name.strip().lower() or None, version.strip() or None


def _show(out: Output, served: Served, options: ServeOptions, notes: list[str]) -> None:
    from halfbyte.serve import render
    from halfbyte.serve.gpus import known_gpus, parse_gpus
    from halfbyte.serve.launch import launch

    if options.gpus is None:
        fix = f"pass --gpus, e.g. --gpus 8xB200 ({', '.join(known_gpus())}), or --run to start the installed engine"
        raise UsageError("no GPUs specified", where="--gpus", fix=fix)
    folder = _write_to(options.write, served)
    gpus = parse_gpus(options.gpus)
    name, version = _engine(options)
    first = launch(served, gpus, _launch_options(options, name, version))
    launches = [first, *(_others(out, served, gpus, options, first.engine) if name is None else [])]
    text = render.docker_script(first) if options.docker else render.script(first)
    if folder is None:
        out.text(text, render.launch_record(launches if out.as_json else [first]).as_json())
        _warn(out, first, notes)
        also = "".join(f" --engine {other.engine}" for other in launches[1:2])
        return out.hint(f"halfbyte serve {pasted(served.folder)} --gpus '{gpus}'{also or ' --write DIR'}")
    scripts = render.files(launches)
    written = render.write_files(folder, scripts)
    for path in render.remove_stale(folder, scripts):
        out.note(f"removed {path}, left over from an earlier call")
    out.table([{"file": str(path)} for path in written], [Column("file", "written")])
    _warn(out, first, notes)
    if first.fit is not None:
        out.note("\n".join(first.fit.lines()))
    return out.hint(f"bash {pasted(written[0])}")


def _write_to(target: str | None, served: Served) -> Path | None:
    """Return the folder for scripts. It must not be the checkpoint folder, which engines load and `publish` uploads."""
    from halfbyte.checkpoint.output_folder import FOLDER

    if target is None:
        return None
    if not target:
        raise UsageError("--write is empty", where="--write", fix="pass a folder, e.g. --write scripts")
    kept = served.folder.resolve() / FOLDER
    written_to, own = Path(target).resolve(), kept / SCRIPTS  # published with the checkpoint
    if written_to != own and (written_to == kept or kept in written_to.parents):
        what = f"{FOLDER}/ is reserved for the checkpoint's evidence; scripts belong in {FOLDER}/{SCRIPTS}"
        fix = f"use that folder, or another one, e.g. --write {pasted(served.folder / 'scripts')}"
        raise UsageError(what, where="--write", fix=fix)
    if Path(target).resolve() == served.folder.resolve():
        fix = f"use another folder, or a subfolder: --write {pasted(Path(target) / 'scripts')}"
        raise UsageError("scripts cannot be written next to the weights", where="--write", fix=fix)
    return Path(target)


def _others(out: Output, served: Served, gpus: Gpus, options: ServeOptions, first: str) -> list[Launch]:
    """Return the launches of the other compatible engines. Print why the rest are not."""
    from halfbyte.serve.launch import engines_for, launch

    launches: list[Launch] = []
    for name in engines_for(gpus):
        if name == first or options.settings or options.port:  # these options are for one engine
            continue
        try:
            launches.append(launch(served, gpus, _launch_options(options, name)))
        except (UsageError, CheckFailedError) as error:
            out.note(f"skipped {name}: {error.what}")
    return launches


def _warn(out: Output, planned: Launch, notes: list[str]) -> None:
    for line in (*(f"! {note.text}" for note in planned.warnings), *notes):
        out.note(line)


def _run(out: Output, served: Served, options: ServeOptions, commands: dict[str, click.Command]) -> int:
    from contextlib import ExitStack
    from dataclasses import replace

    from halfbyte.serve.installed import engine_here, gpus_here, installed, refuse_beside_run
    from halfbyte.serve.launch import launch
    from halfbyte.serve.launch_data import engine
    from halfbyte.serve.ports import held_port

    refuse_beside_run(options)
    name, version = _engine(options)
    if version is not None:
        raise UsageError("--run uses the installed version", where="--engine", fix=f"use --engine {name}")
    then = then_commands(options.then, commands)
    engine(name or "vllm")  # raises for an unknown engine, before `installed` does for one that is not installed
    local = installed(name or "vllm")
    chosen = _launch_options(options, engine_here(name, local), local.version)
    gpus = gpus_here(options.gpus, local)
    with ExitStack() as held:
        port = held.enter_context(held_port(options.port))
        proxy_port = None if options.guard is None else port
        planned = launch(
            served, gpus, replace(chosen, port=port if proxy_port is None else held.enter_context(held_port(None)))
        )
        _warn(out, planned, [])
        return _start(out, planned, options, local.command, then, proxy_port)


def _start(
    out: Output,
    planned: Launch,
    options: ServeOptions,
    command: Path,
    commands: list[list[str]],
    proxy_port: int | None,
) -> int:
    from contextlib import nullcontext

    from halfbyte.serve.engine_log import default_log
    from halfbyte.serve.engine_process import then_checks, then_shell
    from halfbyte.serve.installed import loads_from_hub
    from halfbyte.serve.loop_proxy.server import running_proxy
    from halfbyte.serve.ports import HOST
    from halfbyte.serve.run import run_engine

    words = [str(command), *planned.words[1:], "--host", HOST]
    environment = {row.flag: str(row.value) for row in planned.environment}
    then = then_shell(options.exec, planned.name) if options.exec else None
    then = then_checks(commands, out) if commands else then
    log = options.log or default_log(planned.port)
    url = f"http://{HOST}:{planned.port}"
    hub = loads_from_hub(planned)
    with nullcontext() if proxy_port is None else running_proxy(url, proxy_port) as proxy:
        return run_engine(
            words, environment, url, log=log, out=out, served_name=planned.name, then=then, hub=hub, proxy=proxy
        )


def then_commands(values: Sequence[str], commands: dict[str, click.Command]) -> list[list[str]]:
    """Split the values of --then into commands with their options. Raise on usage errors before the engine starts."""
    parsed: list[list[str]] = []
    for value in values:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise UsageError(f"{error} in {value!r}", where="--then", fix="close the quotation") from None
        plain = words[1:] == [] or "," in words[0]  # a list of names: "probe, eval"
        parsed += [[name.strip()] for name in value.split(",")] if plain else [words]
    for name, *given in parsed:
        _check_command(name, given, commands)
    return parsed


def _check_command(name: str, words: list[str], commands: dict[str, click.Command]) -> None:
    """Parse a command's options and check that its data is available."""
    known = [known for known in URL_COMMANDS if known in commands]
    if name not in known:
        fix = did_you_mean(name, known) if known else "use --exec 'COMMAND' with $HALFBYTE_URL"
        raise UsageError(f"'{name}' is not a command that takes a URL", where="--then", fix=fix)
    where = f"--then '{shlex.join([name, *words])}'"
    try:
        context = commands[name].make_context(name, [_SOME_URL, *words], parent=click.get_current_context(silent=True))
    except click.exceptions.Exit:
        raise UsageError("this command does not use a server", where=where, fix=f"halfbyte {name} --help") from None
    except click.ClickException as error:
        fix = f"see halfbyte {name} --help"
        raise UsageError(error.format_message().rstrip("."), where=where, fix=fix) from None
    if name == "eval":  # fail before a large model is loaded
        _find_data(context)


def _find_data(context: click.Context) -> None:
    from halfbyte.evaluate.harness import load_harness
    from halfbyte.evaluate.suites import load_suite

    load_harness(load_suite(context.params["suite"]), context.params["data_dir"])


def _guard(out: Output, options: ServeOptions) -> None:
    """Run the loop-stopping proxy of `--guard URL` until Ctrl-C."""
    import asyncio

    from halfbyte.endpoint.client import parse_url
    from halfbyte.serve.loop_proxy.server import needs_aiohttp, serve_until_stopped
    from halfbyte.serve.ports import HOST, held_port

    url = options.guard or ""
    _refuse_beside_guard(options, url)
    needs_aiohttp()
    server = parse_url(url, timeout_s=10.0).url
    with held_port(options.port or _GUARD_PORT) as port:
        if server in (f"http://{HOST}:{port}", f"http://localhost:{port}"):
            what = "the proxy cannot listen on its server's port"
            raise UsageError(what, where=f"--port {port}", fix="choose another --port")

        def ready() -> None:
            out.note(f"http://{HOST}:{port} forwards requests to {server} and stops loops; Ctrl-C to quit")

        asyncio.run(serve_until_stopped(out, server, port, ready))


def _refuse_beside_guard(options: ServeOptions, url: str) -> None:
    if not url:
        what = "--guard requires a server: a running one, or the one that --run starts"
        raise UsageError(what, where="--guard", fix="pass its URL, or use serve OUT --run --guard")
    if options.out_folder is not None:
        fix = f"to serve OUT behind the proxy: halfbyte serve {options.out_folder} --run --guard, without the URL"
        raise UsageError("--guard URL proxies a running server and cannot serve OUT", where="OUT", fix=fix)
    for name, row in options_of(ServeOptions).items():
        if getattr(options, name) and name not in _GUARD_OPTIONS:
            raise UsageError(f"{row.flag} has no effect with --guard URL", where=row.flag, fix=f"omit {row.flag}")
