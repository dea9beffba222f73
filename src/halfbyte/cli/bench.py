"""The `halfbyte bench` command."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.cli.command import command
from halfbyte.errors import CheckFailedError, InterruptedRunError, UsageError
from halfbyte.options.server_tests import BenchOptions
from halfbyte.ui.console import Output

if TYPE_CHECKING:
    from halfbyte.bench.records import Block
    from halfbyte.evidence.benchmark import Benchmark, BenchServer


@command("bench", BenchOptions, example="halfbyte bench http://127.0.0.1:8000 --concurrency 1,16 --shape 8k:1k")
def bench_command(out: Output, options: BenchOptions) -> None:
    """Measure the speed of the server at URL.

    Uses vLLM's load generator. With --against, compares two servers. Exit code 1 if requests failed. Ctrl-C keeps
    complete blocks, and the same command resumes. API keys come from HALFBYTE_API_KEY or OPENAI_API_KEY.
    """
    from halfbyte.bench.importers import read_results, refuse_duplicates
    from halfbyte.bench.records import targets
    from halfbyte.bench.report import COLUMNS, failed_points, make_report, rows, sentences
    from halfbyte.checkpoint.atomic_write import disk_error
    from halfbyte.cli.hash_progress import hash_served

    slo = targets(options.slo)
    if options.gpus:
        from halfbyte.serve.gpus import parse_gpus

        if not parse_gpus(options.gpus).memory_tb_s:
            fix = "name the GPU, e.g. 8xH100, or omit --gpus"
            raise UsageError(f"unknown memory bandwidth of {options.gpus}", where="--gpus", fix=fix)
    _refuse_contradictions(options)
    blocks: list[Block] = []
    for files, arm in ((options.imported, "A"), (options.against_results, "B")):
        imported_blocks = [block for file in files for block in read_results(file, arm)]
        refuse_duplicates(imported_blocks, arm)
        blocks += imported_blocks
    servers: dict[str, BenchServer] = {}
    folder = options.folder
    sequential = bool(options.imported or options.against_results)
    design = "sequential" if sequential else "abba"
    try:
        if options.url:
            hash_served(out, folder / "bench.json")
            servers, measured = _measure(out, options)
            blocks += measured
        bench = make_report(blocks, servers, design=design, slo=slo, gpus=options.gpus, emulated=options.emulated)
        _save(bench, folder)
    except OSError as error:
        raise disk_error(error, folder, "complete blocks") from None
    if out.as_json:
        out.facts(bench.as_json(), [])
    else:
        out.table(rows(bench), COLUMNS)
    out.verdicts(sentences(bench))
    out.note(f"{folder / 'bench.json'}")
    if failed := failed_points(bench):
        worst = failed[0]
        what = worst.no_claim_because or f"no measurements at {worst.point}"
        fix = "see the server's log; the results above are valid"
        raise CheckFailedError(what, where=str(folder / "bench.jsonl"), fix=fix)
    if not options.against and not sequential:
        out.hint(f"halfbyte bench {options.url} --against URL2")


def _refuse_contradictions(options: BenchOptions) -> None:
    if not options.url and not options.imported:
        raise UsageError("nothing to measure", where="URL", fix="pass a server URL, or results with --import")
    if options.against and (not options.url or options.imported or options.against_results):
        what = "--against alternates with URL and cannot be combined with result files"
        raise UsageError(what, where="--against", fix="omit --import and --against-results")


def _measure(out: Output, options: BenchOptions) -> tuple[dict[str, BenchServer], list[Block]]:
    """Run the load. After an interrupt, complete blocks are on disk."""
    from halfbyte.bench.blocks import Arm, Plan, measure
    from halfbyte.bench.records import open_records, points
    from halfbyte.bench.server import inspect_server
    from halfbyte.bench.vllm_generator import VllmGenerator
    from halfbyte.checkpoint.output_folder import locked_results

    load_points = points(options.shape, options.concurrency, options.content, chat=options.chat)
    addresses = {"A": options.url} | ({"B": options.against} if options.against else {})
    servers = {
        name: inspect_server(address, emulated=options.emulated, gpus=options.gpus, model=options.model)
        for name, address in addresses.items()
    }
    for server in servers.values():
        longest = max(point.prompt + point.output for point in load_points)
        if server.context is not None and longest > server.context:
            what = f"the longest request has {longest:,} tokens, but the server's context is {server.context:,}"
            raise UsageError(what, where=server.url, fix="use a shorter --shape")
    plan = Plan(
        arms=tuple(Arm(name, server) for name, server in servers.items()),
        points=tuple(load_points),
        blocks=options.blocks,
        tokenizer=options.tokenizer or _tokenizer(servers["A"]),
        request_within_s=options.timeout_s,
        seed=options.seed,
        trust_remote_code=options.trust_remote_code,
    )
    folder = options.folder
    with locked_results(folder):
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


def _tokenizer(server: BenchServer) -> str:
    if Path(server.root).is_dir():
        return server.root
    what = "the server's checkpoint is not on this machine, and prompts of exact length need its tokenizer"
    raise UsageError(what, where=server.url, fix="pass a folder with the tokenizer files as --tokenizer")


def _save(bench: Benchmark, folder: Path) -> None:
    from halfbyte.bench.report import plot
    from halfbyte.checkpoint.atomic_write import write_whole
    from halfbyte.evidence.measured_files import measured_on

    folder.mkdir(parents=True, exist_ok=True)
    note = f"no claim: {bench.no_claim_because}" if bench.no_claim_because else ""
    picture = plot(bench.points, note)
    replace(bench, **measured_on(folder / "bench.json")).write(folder / "bench.json")
    if picture is None:
        with suppress(OSError):
            (folder / "bench.svg").unlink()
    else:
        write_whole(folder / "bench.svg", picture.encode())
