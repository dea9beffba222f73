"""The `halfbyte bench` command, with deferred imports."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.cli.named_values import GPUS
from halfbyte.cli.number_options import SECONDS
from halfbyte.cli.usage import Command
from halfbyte.errors import CheckFailedError, InterruptedRunError, UsageError
from halfbyte.ui.console import Output

if TYPE_CHECKING:
    from halfbyte.bench.machine import Server
    from halfbyte.bench.records import Block
    from halfbyte.bench.report import Report

_MOST_BLOCKS = 10_000
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("bench", cls=Command, example="halfbyte bench http://127.0.0.1:8000 --concurrency 1,16 --shape 8k:1k")
@click.argument("url", metavar="[URL]", required=False)
@click.option("--against", metavar="URL2", help="Also measure this server, in alternating blocks, and compare.")
@click.option("--shape", "shapes", multiple=True, default=("1k:1k",), show_default=True,
              help="Input and output tokens; repeatable.")  # fmt: skip
@click.option("--concurrency", default="1,8,64", show_default=True, help="Concurrent requests.")
@click.option("--content", default="random", show_default=True,
              help="Prompt content: random, prose, code, json, or several separated by commas.")  # fmt: skip
@click.option("--chat", is_flag=True, help="Use the chat template. Prompt lengths are then approximate.")
@click.option("--blocks", type=click.IntRange(1, _MOST_BLOCKS), default=6, show_default=True,
              help="Blocks per server and point; a claim needs at least 6.")  # fmt: skip
@click.option("--slo", help="Count requests that meet these targets, e.g. ttft=1s,tpot=50ms.")
@click.option("--gpus", metavar="NxGPU", type=GPUS, help="The server's GPUs, e.g. 8xB200, for the roofline.")
@click.option(
    "--tokenizer", metavar="DIR", help="Tokenizer folder or Hub name.  [default: the server's checkpoint folder]"
)
@click.option("--model", help="Model name, if the server has several.")
@click.option("--emulated", is_flag=True, help="The server emulates its format: make no speed claims.")
@click.option("--import", "imported", type=_FILE, multiple=True,
              help="Result files of server A, one per server start (vLLM, guidellm, aiperf or halfbyte).")  # fmt: skip
@click.option(
    "--against-results", type=_FILE, multiple=True, help="Result files of server B, if both cannot run at once."
)
@click.option("--timeout", type=SECONDS, default=600.0, show_default=True,
              help="Timeout of one request, in seconds.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the prompts.")
@click.option("--trust-remote-code", is_flag=True, help="Allow custom tokenizer code (Kimi needs it).")
@click.option("-o", "--out", "folder", type=click.Path(file_okay=False, path_type=Path), default="bench",
              show_default=True, help="Folder for bench.jsonl, .json and .svg. Resumes an existing run.")  # fmt: skip
@click.pass_obj
def bench_command(out: Output, url: str | None, **choice: Any) -> None:
    """Measure the speed of the server at URL.

    Uses vLLM's load generator. With --against, compares two servers. Exit code 1 if requests failed. Ctrl-C keeps
    complete blocks, and the same command resumes. API keys come from HALFBYTE_API_KEY or OPENAI_API_KEY.
    """
    from halfbyte.bench.importers import read_results, refuse_duplicates
    from halfbyte.bench.records import targets
    from halfbyte.bench.report import COLUMNS, make_report
    from halfbyte.checkpoint.atomic_write import disk_error
    from halfbyte.cli.hash_progress import hash_served

    slo = targets(choice["slo"])
    if choice["gpus"]:
        from halfbyte.serve.gpus import parse_gpus

        if not parse_gpus(choice["gpus"]).memory_tb_s:
            fix = "name the GPU, e.g. 8xH100, or omit --gpus"
            raise UsageError(f"unknown memory bandwidth of {choice['gpus']}", where="--gpus", fix=fix)
    _refuse_contradictions(url, choice)
    blocks: list[Block] = []
    for option, arm in (("imported", "A"), ("against_results", "B")):
        imported_blocks = [block for file in choice[option] for block in read_results(file, arm)]
        refuse_duplicates(imported_blocks, arm)
        blocks += imported_blocks
    servers: dict[str, Server] = {}
    folder: Path = choice["folder"]
    sequential = bool(choice["imported"] or choice["against_results"])
    design = "sequential" if sequential else "abba"
    try:
        if url is not None:
            hash_served(out, folder / "bench.json")
            servers, measured = _measure(out, url, choice)
            blocks += measured
        report = make_report(blocks, servers, design=design, slo=slo, gpus=choice["gpus"], emulated=choice["emulated"])
        _save(report, folder)
    except OSError as error:
        raise disk_error(error, folder, "complete blocks") from None
    if out.as_json:
        out.facts(report.record().as_json(), [])
    else:
        out.table(report.rows(), COLUMNS)
    out.verdicts(report.sentences())
    out.note(f"{folder / 'bench.json'}")
    if report.failed:
        worst = report.failed[0]
        what = worst.no_claim_because or f"no measurements at {worst.point}"
        fix = "see the server's log; the results above are valid"
        raise CheckFailedError(what, where=str(folder / "bench.jsonl"), fix=fix)
    if not choice["against"] and not sequential:
        out.hint(f"halfbyte bench {url} --against URL2")


def _refuse_contradictions(url: str | None, choice: dict[str, Any]) -> None:
    if url is None and not choice["imported"]:
        raise UsageError("nothing to measure", where="URL", fix="pass a server URL, or results with --import")
    if choice["against"] and (url is None or choice["imported"] or choice["against_results"]):
        what = "--against alternates with URL and cannot be combined with result files"
        raise UsageError(what, where="--against", fix="omit --import and --against-results")


def _measure(out: Output, url: str, choice: dict[str, Any]) -> tuple[dict[str, Server], list[Block]]:
    """Run the load. After an interrupt, complete blocks are on disk."""
    from halfbyte.bench.blocks import Arm, Plan, measure
    from halfbyte.bench.machine import inspect_server
    from halfbyte.bench.records import open_records, points
    from halfbyte.bench.vllm_generator import VllmGenerator
    from halfbyte.checkpoint.output_folder import alone_measuring

    load_points = points(choice["shapes"], choice["concurrency"], choice["content"], chat=choice["chat"])
    addresses = {"A": url} | ({"B": choice["against"]} if choice["against"] else {})
    server_options = {"emulated": choice["emulated"], "gpus": choice["gpus"], "model": choice["model"]}
    servers = {name: inspect_server(address, **server_options) for name, address in addresses.items()}
    for server in servers.values():
        longest = max(point.prompt + point.output for point in load_points)
        if server.context is not None and longest > server.context:
            what = f"the longest request has {longest:,} tokens, but the server's context is {server.context:,}"
            raise UsageError(what, where=server.url, fix="use a shorter --shape")
    plan = Plan(
        arms=tuple(Arm(name, server) for name, server in servers.items()),
        points=tuple(load_points),
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
            out.note(f"resuming: {len(records.blocks)} blocks are already measured")
        try:
            with VllmGenerator(folder / "generator.log") as generator:
                measure(plan, generator, records, out.note)
        except KeyboardInterrupt:
            what = f"interrupted; {len(records.blocks)} blocks are kept"
            raise InterruptedRunError(what, where=str(records.path), fix="run the same command to resume") from None
    return servers, records.blocks


def _tokenizer(server: Server) -> str:
    if Path(server.root).is_dir():
        return server.root
    what = "the server's checkpoint is not on this machine, and prompts of exact length need its tokenizer"
    raise UsageError(what, where=server.url, fix="pass a folder with the tokenizer files as --tokenizer")


def _save(report: Report, folder: Path) -> None:
    from halfbyte.bench.report import plot
    from halfbyte.checkpoint.atomic_write import write_whole
    from halfbyte.evidence.measured_files import measured_on

    folder.mkdir(parents=True, exist_ok=True)
    note = f"no claim: {report.no_claim_because}" if report.no_claim_because else ""
    picture = plot(report.summaries, note)
    report.record(measured_on(folder / "bench.json")).write(folder / "bench.json")
    if picture is None:
        with suppress(OSError):
            (folder / "bench.svg").unlink()
    else:
        write_whole(folder / "bench.svg", picture.encode())
