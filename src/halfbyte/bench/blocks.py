"""Warm up, then run the blocks in the order A B B A A B B A ..., one at a time, and record each at once.

Two servers never have load at the same time, so servers on the same machine do not compete for its cores. A failed
block is recorded with its reason. A point is abandoned if its warm-up or two blocks in a row fail, so a hanging
endpoint costs minutes. The bench stops if a server is restarted or replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from halfbyte.bench.records import Block, Records, requests_of
from halfbyte.bench.server import GpuPower, KvPeak, identity, metrics, server_changes
from halfbyte.bench.vllm_generator import LoadGenerator, Order, seed_of
from halfbyte.endpoint.client import without_keys
from halfbyte.endpoint.metrics_page import between
from halfbyte.errors import CheckFailedError
from halfbyte.evidence.benchmark import BenchServer, LoadPoint

WARM_UP = -1  # turn number
ROUNDS = 4  # requests per user in a block
MAX_FAILURES = 2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the servers: "A" is the candidate, "B" the reference."""

    name: str
    server: BenchServer


@dataclass(frozen=True, slots=True)
class Plan:
    """The servers, load points and settings of a bench."""

    arms: tuple[Arm, ...]
    points: tuple[LoadPoint, ...]
    blocks: int
    tokenizer: str
    request_within_s: float
    seed: int = 0
    rounds: int = ROUNDS
    trust_remote_code: bool = False

    def settings(self) -> dict[str, Any]:
        """Return the settings that must be equal to resume an earlier file.

        A restarted server, or another checkpoint at the same address, counts as another server.
        """
        return {
            "servers": {arm.name: identity(arm.server) for arm in self.arms},
            "tokenizer": self.tokenizer,
            "points": [str(point) for point in self.points],
            "blocks": self.blocks,
            "seed": self.seed,
            "rounds": self.rounds,
        }


def measure(plan: Plan, generator: LoadGenerator, records: Records, say: Say) -> None:
    """Run the blocks that are missing in the records."""
    done = {(block.arm, block.point, block.turn) for block in records.blocks if not block.problem}
    for point in plan.points:
        left = [(turn, arm) for turn, arm in turns(plan) if (arm.name, point, turn) not in done]
        if left and not _warm(plan, point, generator, records, say):
            continue
        failures = 0
        for turn, arm in left:
            block = run_block(plan, arm, point, turn, generator)
            changed = server_changes(arm.server)
            if block.problem or not changed:
                records.add(block)
                say(line(block, plan.blocks))
            if changed:
                raise _another_server(arm, changed)
            failures = failures + 1 if block.problem else 0
            if failures == MAX_FAILURES:
                say(f"{point}: abandoned after {failures} failed blocks in a row")
                break


def _another_server(arm: Arm, changed: str) -> CheckFailedError:
    """Return the error for a server that was restarted or replaced during the bench."""
    what = f"server {arm.name} changed during the bench ({changed})"
    fix = "keep the same server running for the whole bench, and choose another folder with -o"
    return CheckFailedError(what, where=arm.server.url, fix=fix)


def turns(plan: Plan) -> Iterator[tuple[int, Arm]]:
    """Yield the turns and servers in order: A B, B A, A B, ..."""
    for turn in range(plan.blocks):
        for arm in plan.arms if turn % 2 == 0 else plan.arms[::-1]:
            yield turn, arm


def _warm(plan: Plan, point: LoadPoint, generator: LoadGenerator, records: Records, say: Say) -> bool:
    """Run one unrecorded request per user on each server. Record a failure and return False."""
    for arm in plan.arms:
        block = run_block(plan, arm, point, WARM_UP, generator)
        if block.problem:
            records.add(block)
            say(f"{point}: abandoned, warm-up of {arm.name} failed: {block.problem}")
            return False
    return True


def run_block(plan: Plan, arm: Arm, point: LoadPoint, turn: int, generator: LoadGenerator) -> Block:
    """Run one block and return its record. Server failures are recorded, not raised."""
    requests = point.concurrency * (1 if turn == WARM_UP else plan.rounds)
    order = Order(
        url=arm.server.url,
        model=arm.server.model,
        tokenizer=plan.tokenizer,
        point=point,
        requests=requests,
        name=f"{arm.name}{turn}",
        body_seed=seed_of(plan.seed, str(point), turn),
        head_seed=seed_of(plan.seed, str(point), turn, arm.name),
        request_within_s=plan.request_within_s,
        trust_remote_code=plan.trust_remote_code,
    )
    before = metrics(arm.server.url)
    with GpuPower(wanted=arm.server.local) as power, KvPeak(lambda: metrics(arm.server.url)) as kv:
        answer = generator.block(order)
    after = metrics(arm.server.url)
    server = {**between(before, after), "kv_use_peak": kv.peak, "no_claim_because": arm.server.no_claim_because}
    if "failed" in answer:
        why = without_keys(answer["failed"])
        return Block(arm.name, point, turn, 0.0, (), failed=why, server=server, gpus=power.summary)
    result: dict[str, Any] = answer["result"]
    return Block(
        arm=arm.name,
        point=point,
        turn=turn,
        seconds=result["duration"],
        requests=requests_of(result, point),
        server=server,
        gpus=power.summary,
        processor_share=answer["processor_share"],
    )


def line(block: Block, blocks: int) -> str:
    """Return the progress line of a finished block."""
    result = block.problem or f"{block.throughput:,.1f} tok/s, {block.per_user:,.1f} per user"
    return f"{block.point}: {block.arm} {block.turn + 1}/{blocks}: {result}"
