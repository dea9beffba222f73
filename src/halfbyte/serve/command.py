"""The command `halfbyte serve`; what it needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.serve.then_option import ThenOption, commands_beside
from halfbyte.terminal.console import Output
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.usage import Command

if TYPE_CHECKING:
    from halfbyte.serve.facts import Wish
    from halfbyte.serve.gpus import Gpus
    from halfbyte.serve.launch import Launch
    from halfbyte.serve.served import Served

_PATH = click.Path(path_type=Path)
_POSITIVE = click.IntRange(1)
SCRIPTS = "serve"  # below halfbyte/ in an output folder


@click.command("serve", cls=Command)
@click.argument("out_folder", metavar="[OUT]", type=_PATH, required=False)
@click.option("--gpus", metavar="NxGPU", help="What it shall run on, as in 8xB200.")
@click.option("--engine", metavar="NAME[==VERSION]",
              help="vllm, vllm-rocm, sglang or atom.  [default: vLLM; with --write all that can]")  # fmt: skip
@click.option("--docker", is_flag=True, help="Print the script for docker instead of the one without.")
@click.option("--write", "write_to", metavar="DIR", help="Write scripts and serve.json into this folder.")
@click.option("--context", type=_POSITIVE, help="Tokens of a request and its answer.  [default: what fits]")
@click.option("--concurrency", type=_POSITIVE, help="Requests of full length at once that must fit.")
@click.option("--tp", type=_POSITIVE, help="GPUs that share a matrix.  [default: all that can]")
@click.option("--dcp", type=_POSITIVE, help="GPUs that share the KV cache by tokens.  [default: 1, or --tp if needed]")
@click.option("--ep", is_flag=True, help="Whole experts on each GPU instead of a part of each.")
@click.option("--draft", metavar="auto|MODEL", help="An Eagle3 draft that proposes tokens.")
@click.option("--text-only", is_flag=True, help="Take no pictures.")
@click.option("--port", type=click.IntRange(1, 65535), help="Where the server listens.  [default: the engine's own]")
@click.option("--hub", metavar="ORG/NAME[@COMMIT]", help="Let the engine load it from the Hub, as OUT is there.")
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="Any setting; env.NAME for a variable.")
@click.option("--like", metavar="NAME", help="Print a published command to the letter, and nothing else.")
@click.option("--run", "runs", is_flag=True, help="Start the engine that is installed here.")
@click.option("--emulate", is_flag=True, help="With --run: 4-bit weights expanded to BF16, on any machine.")
@click.option("--activations", type=click.Choice(["on", "off"]), help="With --emulate: also emulate 4-bit inputs.")
@click.option("--then", "then_names", metavar="NAME,...", cls=ThenOption, multiple=True)
@click.option("--exec", "shell", metavar="COMMAND", help="With --run: a shell command that gets HALFBYTE_URL.")
@click.option("--log", type=_PATH, help="With --run: the engine's log.  [default: serve.log]")
@click.option("--guard", metavar="[URL]", is_flag=False, flag_value="",
              help="Stand before this server and end its loops (port 8100); with --run before the engine.")  # fmt: skip
@click.pass_context
def serve_command(ctx: click.Context, out_folder: Path | None, **choice: Any) -> None:
    """Say how to serve the checkpoint OUT: a script for an engine, each setting with its reason.

    Nothing is started without --run, and only headers are read.
    """
    out: Output = ctx.obj
    url = choice["guard"]
    if url or (url is not None and not choice["runs"]):
        from halfbyte.serve.guard.command import guard

        return guard(out, url, out_folder, choice)
    if choice["like"] is not None:
        _refuse_beside_like(ctx)
        return _show_published(out, choice["like"])
    if out_folder is None:
        raise UsageError("no checkpoint is named", where="OUT", fix="give its folder, or --like NAME")
    if str(out_folder).startswith("hf:/"):
        name = str(out_folder).removeprefix("hf:/").strip("/")
        fix = f"hf download {name} --local-dir OUT, then halfbyte serve OUT --hub {name}@COMMIT"
        raise UsageError("OUT is a folder here; --hub names where the engine loads it from", where="OUT", fix=fix)
    _refuse_alone(choice)
    from halfbyte.serve.served import served
    from halfbyte.serve.sound import audited, without_tokenizer

    found = served(out_folder)
    said = [*without_tokenizer(out_folder), *(audited(out_folder) if found.quantization != "bf16" else [])]
    if choice["runs"]:
        for sentence in (one for one in said if one.startswith("!")):
            out.note(sentence)
        return ctx.exit(_run(out, found, choice, commands_beside(ctx)))
    return _show(out, found, choice, said)


def _show_published(out: Output, name: str) -> None:
    from halfbyte.serve.knowledge import published

    row = published(name)
    out.text(row.command, {"name": name, "command": row.command, "source": row.source, "note": row.note})
    out.note(f"{row.title}: {row.source}, on {row.gpus}" + (f". {row.note}" if row.note else ""))
    out.hint(f"halfbyte serve OUT --gpus '{row.gpus}', for what we would do")


def _refuse_beside_like(ctx: click.Context) -> None:
    """Refuse what a published command, which is printed to the letter, would pass over in silence."""
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
        if given and parameter.name != "like":
            name = max(parameter.opts, key=len) if isinstance(parameter, click.Option) else "OUT"
            what = f"--like prints a published command to the letter, and {name} does nothing beside it"
            raise UsageError(what, where=name, fix=f"leave out {name}, or --like for a command of ours")


def _refuse_alone(choice: Mapping[str, Any]) -> None:
    """Refuse options that do nothing without another."""
    for option, needed in (("emulate", "runs"), ("then_names", "runs"), ("shell", "runs"), ("log", "runs"),
                           ("activations", "emulate")):  # fmt: skip
        if choice[option] not in (None, False, ()) and not choice[needed]:
            names = {"runs": "--run", "then_names": "--then", "shell": "--exec"}
            option_name, needed_name = (names.get(word, f"--{word}") for word in (option, needed))
            raise UsageError(f"{option_name} is for {needed_name}", where=option_name, fix=f"add {needed_name}")
    if choice["shell"] is not None and not choice["shell"].strip():
        raise UsageError(
            "--exec names no command", where="--exec", fix="give one, as in --exec 'curl $HALFBYTE_URL/v1/models'"
        )
    if choice["then_names"] and choice["shell"]:
        raise UsageError("--then and --exec are two ways to use the server", where="--exec", fix="give one of them")


def _wish(choice: Mapping[str, Any], engine: str | None = None, version: str | None = None) -> Wish:
    from halfbyte.serve.facts import Wish

    names = ("docker", "context", "concurrency", "tp", "dcp", "ep", "draft", "text_only", "port", "hub", "given")
    names += ("emulate", "activations")
    return Wish(engine=engine, version=version, **{name: choice[name] for name in names})


def _engine(choice: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the engine and the version of `vllm==0.25.1`."""
    name, _, version = (choice["engine"] or "").partition("==")
    return name.strip().lower() or None, version.strip() or None


def _show(out: Output, served: Served, choice: Mapping[str, Any], said: list[str]) -> None:
    from halfbyte.serve import render
    from halfbyte.serve.gpus import known_gpus, parse_gpus
    from halfbyte.serve.launch import launch

    if choice["gpus"] is None:
        fix = f"add --gpus 8xB200 or the like ({', '.join(known_gpus())}), or --run to start what is installed here"
        raise UsageError("nobody said which GPUs it shall run on", where="--gpus", fix=fix)
    folder = _write_to(choice["write_to"], served)
    gpus = parse_gpus(choice["gpus"])
    name, version = _engine(choice)
    first = launch(served, gpus, _wish(choice, name, version))
    launches = [first, *(_others(out, served, gpus, choice, first.engine) if name is None else [])]
    text = render.docker_script(first) if choice["docker"] else render.script(first)
    if folder is None:
        out.text(text, render.as_json(launches if out.as_json else [first]))
        _warn(out, first, said)
        also = "".join(f" --engine {other.engine}" for other in launches[1:2])
        return out.hint(f"halfbyte serve {pasted(served.folder)} --gpus '{gpus}'{also or ' --write DIR'}")
    found = render.files(launches)
    written = render.write_files(folder, found)
    for path in render.remove_stale(folder, found):
        out.note(f"removed {path}: of an earlier call, and not part of this one")
    out.table([{"file": str(path)} for path in written], [_file_column()])
    _warn(out, first, said)
    if first.fit is not None:
        out.note("\n".join(first.fit.lines()))
    return out.hint(f"bash {pasted(written[0])}")


def _write_to(asked: str | None, served: Served) -> Path | None:
    """Return the folder for scripts, which is not the checkpoint itself: what lies there is loaded and uploaded."""
    from halfbyte.folders import FOLDER

    if asked is None:
        return None
    if not asked:
        raise UsageError("--write names no folder", where="--write", fix="name one, as in --write scripts")
    kept = served.folder.resolve() / FOLDER
    written_to, own = Path(asked).resolve(), kept / SCRIPTS  # which travels with the checkpoint
    if written_to != own and (written_to == kept or kept in written_to.parents):
        what = f"{FOLDER}/ has the plan and findings of this checkpoint, and its scripts in {FOLDER}/{SCRIPTS}"
        fix = f"give that folder, or one elsewhere, as in --write {pasted(served.folder / 'scripts')}"
        raise UsageError(what, where="--write", fix=fix)
    if Path(asked).resolve() == served.folder.resolve():
        fix = f"give another folder, or one inside: --write {pasted(Path(asked) / 'scripts')}"
        raise UsageError("scripts do not belong among the weights", where="--write", fix=fix)
    return Path(asked)


def _file_column() -> Any:
    from halfbyte.terminal.console import Column

    return Column("file", "written")


def _others(out: Output, served: Served, gpus: Gpus, choice: Mapping[str, Any], first: str) -> list[Launch]:
    """Return the launches of the other engines that can serve this; say why the rest cannot."""
    from halfbyte.serve.launch import engines_for, launch

    found: list[Launch] = []
    for name in engines_for(gpus):
        if name == first or choice["given"] or choice["port"]:  # which are the first engine's
            continue
        try:
            found.append(launch(served, gpus, _wish(choice, name)))
        except (UsageError, CheckFailedError) as error:
            out.note(f"without {name}: {error.what}")
    return found


def _warn(out: Output, made: Launch, said: list[str]) -> None:
    for sentence in (*(f"! {note.text}" for note in made.warnings), *said):
        out.note(sentence)


def _run(out: Output, served: Served, choice: Mapping[str, Any], commands: dict[str, click.Command]) -> int:
    from contextlib import ExitStack
    from dataclasses import replace

    from halfbyte.serve.installed import installed
    from halfbyte.serve.knowledge import engine
    from halfbyte.serve.launch import launch
    from halfbyte.serve.ports import held_port
    from halfbyte.serve.run_options import engine_here, gpus_here, refuse_beside_run
    from halfbyte.serve.then_option import then_commands

    refuse_beside_run(choice)
    name, version = _engine(choice)
    if version is not None:
        raise UsageError("--run takes the version that is installed", where="--engine", fix=f"write --engine {name}")
    then = then_commands(choice["then_names"], commands)
    engine(name or "vllm")  # a name that nobody knows is another mistake than an engine that --run cannot start
    local = installed(name or "vllm")
    wish = _wish(choice, engine_here(name, local), local.version)
    gpus = gpus_here(choice["gpus"], local)
    with ExitStack() as held:
        port = held.enter_context(held_port(choice["port"]))
        front = None if choice["guard"] is None else port
        made = launch(served, gpus, replace(wish, port=port if front is None else held.enter_context(held_port(None))))
        _warn(out, made, [])
        return _start(out, made, choice, local.command, then, front)


def _start(
    out: Output, made: Launch, choice: Mapping[str, Any], command: Path, commands: list[list[str]], front: int | None
) -> int:
    from contextlib import nullcontext

    from halfbyte.serve.guard.beside import guard_before
    from halfbyte.serve.log_file import default_log
    from halfbyte.serve.ports import HOST
    from halfbyte.serve.run import run_engine
    from halfbyte.serve.run_options import loads_from_hub
    from halfbyte.serve.then import then_checks, then_shell

    words = [str(command), *made.words[1:], "--host", HOST]
    environment = {row.flag: str(row.value) for row in made.environment}
    then = then_shell(choice["shell"], made.name) if choice["shell"] else None
    then = then_checks(commands, out) if commands else then
    log = choice["log"] or default_log(made.port)
    url = f"http://{HOST}:{made.port}"
    hub = loads_from_hub(made)
    with nullcontext() if front is None else guard_before(url, front) as guard:
        return run_engine(
            words, environment, url, log=log, out=out, served_name=made.name, then=then, hub=hub, front=guard
        )
