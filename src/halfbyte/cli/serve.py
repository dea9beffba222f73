"""The `halfbyte serve` command, with deferred imports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.cli.named_values import GPUS, PUBLISHED
from halfbyte.cli.serve_then_option import ThenOption, commands_beside
from halfbyte.cli.usage import Command
from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted

if TYPE_CHECKING:
    from halfbyte.serve.checkpoint_facts import Served
    from halfbyte.serve.facts import LaunchOptions
    from halfbyte.serve.gpus import Gpus
    from halfbyte.serve.launch import Launch

_PATH = click.Path(path_type=Path)
_POSITIVE = click.IntRange(1)
SCRIPTS = "serve"  # folder under halfbyte/ in an output folder


@click.command("serve", cls=Command, example="halfbyte serve OUT --gpus 8xB200")
@click.argument("out_folder", metavar="[OUT]", type=_PATH, required=False)
@click.option("--gpus", metavar="NxGPU", type=GPUS, help="GPUs to serve on, e.g. 8xB200 or 8x80GB.")
@click.option("--engine", metavar="NAME[==VERSION]",
              help="vllm, vllm-rocm, sglang or atom.  [default: vLLM; with --write, and without --set and --port, "
              "all compatible ones]")  # fmt: skip
@click.option("--docker", is_flag=True, help="Print the Docker script.")
@click.option("--write", "write_to", metavar="DIR", help="Write scripts and serve.json into this folder.")
@click.option("--context", type=_POSITIVE, help="Context length in tokens.  [default: what fits]")
@click.option("--concurrency", type=_POSITIVE, help="Concurrent full-length requests that must fit.")
@click.option("--tp", type=_POSITIVE, help="Tensor parallel size.  [default: as many GPUs as possible]")
@click.option("--dcp", type=_POSITIVE, help="Decode context parallel size.  [default: 1, or --tp if needed]")
@click.option("--ep", is_flag=True, help="Use expert parallelism.")
@click.option("--draft", metavar="auto|MODEL", help="Eagle3 draft model for speculative decoding.")
@click.option("--text-only", is_flag=True, help="Disable image input.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the server.  [default: the engine's]")
@click.option("--hub", metavar="ORG/NAME[@COMMIT]", help="Let the engine load this copy of OUT from the Hub.")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an engine option; env.NAME sets an environment variable.",
)
@click.option("--like", metavar="NAME", type=PUBLISHED, help="Print a published command verbatim.")
@click.option("--run", "runs", is_flag=True, help="Start the installed engine.")
@click.option("--emulate", is_flag=True, help="With --run: expand 4-bit weights to BF16, to run on any machine.")
@click.option("--activations", type=click.Choice(["on", "off"]), help="With --emulate: also emulate 4-bit activations.")
@click.option("--then", "then_names", metavar="NAME,...", cls=ThenOption, multiple=True)
@click.option("--exec", "shell", metavar="COMMAND", help="With --run: shell command to run with HALFBYTE_URL set.")
@click.option("--log", type=_PATH, help="With --run: log file of the engine.  [default: serve.log]")
@click.option("--guard", metavar="[URL]", is_flag=False, flag_value="",
              help="Run a loop-stopping proxy (port 8100) for this server or, with --run, for the engine.")  # fmt: skip
@click.pass_context
def serve_command(ctx: click.Context, out_folder: Path | None, **choice: Any) -> None:
    """Print or start a serving command for OUT.

    Prints the reason for each setting. Reads only headers, and starts nothing without --run.
    """
    out: Output = ctx.obj
    url = choice["guard"]
    if url or (url is not None and not choice["runs"]):
        from halfbyte.cli.guard import guard

        return guard(out, url, out_folder, choice)
    if choice["like"] is not None:
        return _show_published(ctx, choice["like"])
    if out_folder is None:
        raise UsageError("no checkpoint specified", where="OUT", fix="pass its folder, or --like NAME")
    if str(out_folder).startswith("hf:/"):
        name = str(out_folder).removeprefix("hf:/").strip("/")
        fix = f"hf download {name} --local-dir OUT, then halfbyte serve OUT --hub {name}@COMMIT"
        raise UsageError("OUT must be a local folder; --hub names its Hub repository", where="OUT", fix=fix)
    _refuse_alone(choice)
    from halfbyte.serve.checkpoint_facts import audited, served, without_tokenizer

    checkpoint = served(out_folder)
    notes = [*without_tokenizer(out_folder), *(audited(out_folder) if checkpoint.quantization != "bf16" else [])]
    if choice["runs"]:
        for warning in (note for note in notes if note.startswith("!")):
            out.note(warning)
        return ctx.exit(_run(out, checkpoint, choice, commands_beside(ctx)))
    return _show(out, checkpoint, choice, notes)


def _show_published(ctx: click.Context, name: str) -> None:
    from halfbyte.serve.knowledge import published

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


def _refuse_alone(choice: Mapping[str, Any]) -> None:
    """Refuse options whose required option is missing, and conflicting ones."""
    for option, needed in (("emulate", "runs"), ("then_names", "runs"), ("shell", "runs"), ("log", "runs"),
                           ("activations", "emulate")):  # fmt: skip
        if choice[option] not in (None, False, ()) and not choice[needed]:
            names = {"runs": "--run", "then_names": "--then", "shell": "--exec"}
            option_name, needed_name = (names.get(word, f"--{word}") for word in (option, needed))
            raise UsageError(f"{option_name} requires {needed_name}", where=option_name, fix=f"add {needed_name}")
    if choice["shell"] is not None and not choice["shell"].strip():
        raise UsageError(
            "--exec is empty", where="--exec", fix="pass a command, e.g. --exec 'curl $HALFBYTE_URL/v1/models'"
        )
    if choice["then_names"] and choice["shell"]:
        raise UsageError("--then and --exec cannot be combined", where="--exec", fix="omit one of them")


def _launch_options(choice: Mapping[str, Any], engine: str | None = None, version: str | None = None) -> LaunchOptions:
    from halfbyte.serve.facts import LaunchOptions

    names = ("docker", "context", "concurrency", "tp", "dcp", "ep", "draft", "text_only", "port", "hub", "given")
    names += ("emulate", "activations")
    return LaunchOptions(engine=engine, version=version, **{name: choice[name] for name in names})


def _engine(choice: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Split `vllm==0.25.1` into engine and version."""
    name, _, version = (choice["engine"] or "").partition("==")
    return name.strip().lower() or None, version.strip() or None


def _show(out: Output, served: Served, choice: Mapping[str, Any], notes: list[str]) -> None:
    from halfbyte.serve import render
    from halfbyte.serve.gpus import known_gpus, parse_gpus
    from halfbyte.serve.launch import launch

    if choice["gpus"] is None:
        fix = f"pass --gpus, e.g. --gpus 8xB200 ({', '.join(known_gpus())}), or --run to start the installed engine"
        raise UsageError("no GPUs specified", where="--gpus", fix=fix)
    folder = _write_to(choice["write_to"], served)
    gpus = parse_gpus(choice["gpus"])
    name, version = _engine(choice)
    first = launch(served, gpus, _launch_options(choice, name, version))
    launches = [first, *(_others(out, served, gpus, choice, first.engine) if name is None else [])]
    text = render.docker_script(first) if choice["docker"] else render.script(first)
    if folder is None:
        out.text(text, render.launch_record(launches if out.as_json else [first]).as_json())
        _warn(out, first, notes)
        also = "".join(f" --engine {other.engine}" for other in launches[1:2])
        return out.hint(f"halfbyte serve {pasted(served.folder)} --gpus '{gpus}'{also or ' --write DIR'}")
    scripts = render.files(launches)
    written = render.write_files(folder, scripts)
    for path in render.remove_stale(folder, scripts):
        out.note(f"removed {path}, left over from an earlier call")
    out.table([{"file": str(path)} for path in written], [_file_column()])
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


def _file_column() -> Any:
    from halfbyte.ui.console import Column

    return Column("file", "written")


def _others(out: Output, served: Served, gpus: Gpus, choice: Mapping[str, Any], first: str) -> list[Launch]:
    """Return the launches of the other compatible engines. Print why the rest are not."""
    from halfbyte.serve.launch import engines_for, launch

    launches: list[Launch] = []
    for name in engines_for(gpus):
        if name == first or choice["given"] or choice["port"]:  # these options are for one engine
            continue
        try:
            launches.append(launch(served, gpus, _launch_options(choice, name)))
        except (UsageError, CheckFailedError) as error:
            out.note(f"skipped {name}: {error.what}")
    return launches


def _warn(out: Output, planned: Launch, notes: list[str]) -> None:
    for line in (*(f"! {note.text}" for note in planned.warnings), *notes):
        out.note(line)


def _run(out: Output, served: Served, choice: Mapping[str, Any], commands: dict[str, click.Command]) -> int:
    from contextlib import ExitStack
    from dataclasses import replace

    from halfbyte.cli.serve_then_option import then_commands
    from halfbyte.serve.installed import engine_here, gpus_here, installed, refuse_beside_run
    from halfbyte.serve.knowledge import engine
    from halfbyte.serve.launch import launch
    from halfbyte.serve.ports import held_port

    refuse_beside_run(choice)
    name, version = _engine(choice)
    if version is not None:
        raise UsageError("--run uses the installed version", where="--engine", fix=f"use --engine {name}")
    then = then_commands(choice["then_names"], commands)
    engine(name or "vllm")  # raises for an unknown engine, before `installed` does for one that is not installed
    local = installed(name or "vllm")
    options = _launch_options(choice, engine_here(name, local), local.version)
    gpus = gpus_here(choice["gpus"], local)
    with ExitStack() as held:
        port = held.enter_context(held_port(choice["port"]))
        proxy_port = None if choice["guard"] is None else port
        planned = launch(
            served, gpus, replace(options, port=port if proxy_port is None else held.enter_context(held_port(None)))
        )
        _warn(out, planned, [])
        return _start(out, planned, choice, local.command, then, proxy_port)


def _start(
    out: Output, planned: Launch, choice: Mapping[str, Any], command: Path, commands: list[list[str]], front: int | None
) -> int:
    from contextlib import nullcontext

    from halfbyte.serve.engine_log import default_log
    from halfbyte.serve.engine_process import then_checks, then_shell
    from halfbyte.serve.installed import loads_from_hub
    from halfbyte.serve.loop_proxy.server import guard_before
    from halfbyte.serve.ports import HOST
    from halfbyte.serve.run import run_engine

    words = [str(command), *planned.words[1:], "--host", HOST]
    environment = {row.flag: str(row.value) for row in planned.environment}
    then = then_shell(choice["shell"], planned.name) if choice["shell"] else None
    then = then_checks(commands, out) if commands else then
    log = choice["log"] or default_log(planned.port)
    url = f"http://{HOST}:{planned.port}"
    hub = loads_from_hub(planned)
    with nullcontext() if front is None else guard_before(url, front) as guard:
        return run_engine(
            words, environment, url, log=log, out=out, served_name=planned.name, then=then, hub=hub, front=guard
        )
