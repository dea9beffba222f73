"""The command `halfbyte bench`; what it needs is imported when it runs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.errors import CheckFailedError, InterruptedRunError, UsageError
from halfbyte.terminal.console import Output
from halfbyte.terminal.number_options import SECONDS
from halfbyte.terminal.usage import Command

if TYPE_CHECKING:
    from halfbyte.validate.bench.machine import Server
    from halfbyte.validate.bench.records import Block
    from halfbyte.validate.bench.report import Report

_MOST_BLOCKS = 10_000
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("bench", cls=Command)
@click.argument("url", metavar="[URL]", required=False)
@click.option("--against", metavar="URL2", help="Measure this one too, in turns, and compare.")
@click.option("--shape", "shapes", multiple=True, default=("1k:1k",), show_default=True,
              help="Tokens of prompts and answers; more than once for several.")  # fmt: skip
@click.option("--concurrency", default="1,8,64", show_default=True, help="Requests at once.")
@click.option("--content", default="random", show_default=True,
              help="What prompts are: random, prose, code, json; with commas for several.")  # fmt: skip
@click.option("--chat", is_flag=True, help="Ask through the chat template; prompts are then only about as long.")
@click.option("--blocks", type=click.IntRange(1, _MOST_BLOCKS), default=6, show_default=True,
              help="Blocks of each server at each point; fewer than 6 support no claim.")  # fmt: skip
@click.option("--slo", help="Count the requests that are fast enough, as in ttft=1s,tpot=50ms.")
@click.option("--gpus", metavar="NxGPU", help="What it runs on, as in 8xB200: for the roofline.")
@click.option("--tokenizer", metavar="DIR", help="A folder or Hub name.  [default: the folder that the server has]")
@click.option("--model", help="The model's name, where the server has several.")
@click.option("--emulated", is_flag=True, help="The server emulates its format, so that no speed is claimed.")
@click.option("--import", "imported", type=_FILE, multiple=True,
              help="Results of A, a file for each start of its server (vLLM, guidellm, aiperf, ours).")  # fmt: skip
@click.option("--against-results", type=_FILE, multiple=True, help="The same for B, where both cannot be up at once.")
@click.option("--timeout", type=SECONDS, default=600.0, show_default=True,
              help="Seconds that one request may take.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="For the prompts.")
@click.option("--trust-remote-code", is_flag=True, help="Let the tokenizer run its own code (Kimi's has some).")
@click.option("-o", "--out", "folder", type=click.Path(file_okay=False, path_type=Path), default="bench",
              show_default=True, help="Folder for bench.jsonl, .json and .svg; resumed if it is there.")  # fmt: skip
@click.pass_obj
def bench_command(out: Output, url: str | None, **choice: Any) -> None:
    """Measure how fast the server at URL answers, with vLLM's own load generator, and compare it with another.

    Exit code 1 if requests failed. Ctrl-C keeps the blocks that are whole; the same command goes on. Keys for servers
    come from HALFBYTE_API_KEY or OPENAI_API_KEY.
    """
    from halfbyte.validate.bench.import_checks import refuse_twice  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.validate.bench.importers import read_results  # noqa: PLC0415
    from halfbyte.validate.bench.report import COLUMNS, make_report  # noqa: PLC0415
    from halfbyte.validate.bench.shapes import targets  # noqa: PLC0415
    from halfbyte.write import disk_error  # noqa: PLC0415

    slo = targets(choice["slo"])
    if choice["gpus"]:
        from halfbyte.serve.gpus import parse_gpus  # noqa: PLC0415

        parse_gpus(choice["gpus"])
    _refuse_contradictions(url, choice)
    blocks: list[Block] = []
    for option, arm in (("imported", "A"), ("against_results", "B")):
        read = [block for file in choice[option] for block in read_results(file, arm)]
        refuse_twice(read, arm)
        blocks += read
    servers: dict[str, Server] = {}
    folder: Path = choice["folder"]
    sequential = bool(choice["imported"] or choice["against_results"])
    design = "sequential" if sequential else "abba"
    try:
        if url is not None:
            servers, measured = _measure(out, url, choice)
            blocks += measured
        found = make_report(blocks, servers, design=design, slo=slo, gpus=choice["gpus"], emulated=choice["emulated"])
        _save(found, folder)
    except OSError as error:
        raise disk_error(error, folder, "whole blocks") from None
    if out.as_json:
        out.facts(found.as_dict(), [])
    else:
        out.table(found.rows(), COLUMNS)
    out.verdicts(found.sentences())
    out.note(f"{folder / 'bench.json'}")
    if found.failed:
        worst = found.failed[0]
        what = worst.no_claim_because or f"nothing was measured at {worst.point}"
        raise CheckFailedError(what, where=str(folder / "bench.jsonl"), fix="see the server's log; what is above holds")
    if not choice["against"] and not sequential:
        out.hint(f"halfbyte bench {url} --against URL2")


def _refuse_contradictions(url: str | None, choice: dict[str, Any]) -> None:
    if url is None and not choice["imported"]:
        raise UsageError("nothing to measure", where="URL", fix="name a server, or results with --import")
    if choice["against"] and (url is None or choice["imported"] or choice["against_results"]):
        what = "--against takes turns with URL, and results from files cannot"
        raise UsageError(what, where="--against", fix="leave out --import and --against-results")


def _measure(out: Output, url: str, choice: dict[str, Any]) -> tuple[dict[str, Server], list[Block]]:
    """Run the load; an interrupt ends it with what is whole on disk."""
    from halfbyte.folders import alone_measuring  # noqa: PLC0415
    from halfbyte.validate.bench.blocks import Arm, Plan, measure  # noqa: PLC0415
    from halfbyte.validate.bench.machine import look_at  # noqa: PLC0415
    from halfbyte.validate.bench.records import open_records  # noqa: PLC0415
    from halfbyte.validate.bench.shapes import points  # noqa: PLC0415
    from halfbyte.validate.bench.vllm_generator import VllmGenerator  # noqa: PLC0415

    wanted = points(choice["shapes"], choice["concurrency"], choice["content"], chat=choice["chat"])
    addresses = {"A": url} | ({"B": choice["against"]} if choice["against"] else {})
    about = {"emulated": choice["emulated"], "gpus": choice["gpus"], "model": choice["model"]}
    servers = {name: look_at(address, **about) for name, address in addresses.items()}
    for server in servers.values():
        longest = max(point.prompt + point.output for point in wanted)
        if server.context is not None and longest > server.context:
            what = f"the server takes {server.context:,} tokens, the longest request has {longest:,}"
            raise UsageError(what, where=server.url, fix="ask for a shorter --shape")
    plan = Plan(
        arms=tuple(Arm(name, server) for name, server in servers.items()),
        points=tuple(wanted),
        blocks=choice["blocks"],
        tokenizer=choice["tokenizer"] or _tokenizer(servers["A"]),
        request_within_s=choice["timeout"],
        seed=choice["seed"],
        trust_remote_code=choice["trust_remote_code"],
    )
    folder: Path = choice["folder"]
    with alone_measuring(folder):
        records = open_records(folder, plan.settings())
        if records.blocks:
            out.note(f"{len(records.blocks)} blocks are there already")
        try:
            with VllmGenerator(folder / "generator.log") as generator:
                measure(plan, generator, records, out.note)
        except KeyboardInterrupt:
            what = f"interrupted; {len(records.blocks)} blocks are kept"
            raise InterruptedRunError(what, where=str(records.path), fix="the same command goes on") from None
    return servers, records.blocks


def _tokenizer(server: Server) -> str:
    if Path(server.root).is_dir():
        return server.root
    what = "the server's checkpoint is not on this machine, and prompts of exact lengths need its tokenizer"
    raise UsageError(what, where=server.url, fix="name a folder that has the tokenizer's files with --tokenizer")


def _save(found: Report, folder: Path) -> None:
    from halfbyte.validate.bench.plot import plot  # noqa: PLC0415
    from halfbyte.write import write_whole  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    note = f"no claim: {found.no_claim_because}" if found.no_claim_because else ""
    picture = plot(found.summaries, note)
    facts = json.dumps(found.as_dict(), indent=1, allow_nan=False)
    texts = {"bench.json": facts + "\n"} | ({"bench.svg": picture} if picture else {})
    if picture is None:
        with suppress(OSError):
            (folder / "bench.svg").unlink()
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
