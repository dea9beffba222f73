"""Run the blocks: warm up, then take turns, A B B A A B B A ..., one block at a time; write each down at once.

Two servers never have load at the same time, so those that share a machine do not share its cores while measured. A
block that fails is written down with its reason. A point of which two blocks in a row fail is given up, and so is one
whose warm-up fails: an endpoint that hangs costs minutes, not the night. A server that was started anew, or replaced,
ends the bench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from halfbyte.errors import CheckFailedError
from halfbyte.validate.bench.gpu_power import GpuPower
from halfbyte.validate.bench.kv_peak import KvPeak
from halfbyte.validate.bench.machine import Server, metrics, what_changed
from halfbyte.validate.bench.metrics_page import between
from halfbyte.validate.bench.records import Block, Records, requests_of
from halfbyte.validate.bench.shapes import Point
from halfbyte.validate.bench.vllm_generator import LoadGenerator, Order, seed_of
from halfbyte.validate.endpoint import without_keys

WARM_UP = -1  # its turn
ROUNDS = 4  # requests of a block for each user
GIVEN_UP_AFTER = 2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the servers: "A" is the one asked about, "B" the one it is measured against."""

    name: str
    server: Server


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured, and how."""

    arms: tuple[Arm, ...]
    points: tuple[Point, ...]
    blocks: int
    tokenizer: str
    request_within_s: float
    seed: int = 0
    rounds: int = ROUNDS
    trust_remote_code: bool = False

    def settings(self) -> dict[str, Any]:
        """Return what decides whether an earlier file is the beginning of this run.

        A server that was started anew, or with another checkpoint at the same address, is another server.
        """
        return {
            "servers": {arm.name: arm.server.identity() for arm in self.arms},
            "tokenizer": self.tokenizer,
            "points": [str(point) for point in self.points],
            "blocks": self.blocks,
            "seed": self.seed,
            "rounds": self.rounds,
        }


def measure(plan: Plan, generator: LoadGenerator, records: Records, say: Say) -> None:
    """Run what is missing in the records."""
    done = {(block.arm, block.point, block.turn) for block in records.blocks if not block.problem}
    for point in plan.points:
        left = [(turn, arm) for turn, arm in turns(plan) if (arm.name, point, turn) not in done]
        if left and not _warm(plan, point, generator, records, say):
            continue
        failures = 0
        for turn, arm in left:
            block = run_block(plan, arm, point, turn, generator)
            changed = what_changed(arm.server)
            if block.problem or not changed:
                records.add(block)
                say(line(block, plan.blocks))
            if changed:
                raise _another_server(arm, changed)
            failures = failures + 1 if block.problem else 0
            if failures == GIVEN_UP_AFTER:
                say(f"{point}: given up after {failures} failed blocks in a row")
                break


def _another_server(arm: Arm, changed: str) -> CheckFailedError:
    """Blocks of two servers are not one measurement, and a restart in between is in no interval."""
    what = f"{arm.name} is not the server any more that the bench began with ({changed})"
    fix = "let one server run through the whole bench, and name another folder with -o"
    return CheckFailedError(what, where=arm.server.url, fix=fix)


def turns(plan: Plan) -> Iterator[tuple[int, Arm]]:
    """Yield who is measured when: A B, B A, A B, ..."""
    for turn in range(plan.blocks):
        for arm in plan.arms if turn % 2 == 0 else plan.arms[::-1]:
            yield turn, arm


def _warm(plan: Plan, point: Point, generator: LoadGenerator, records: Records, say: Say) -> bool:
    """Ask each server once for each user, and forget what came; a failure is written down."""
    for arm in plan.arms:
        block = run_block(plan, arm, point, WARM_UP, generator)
        if block.problem:
            records.add(block)
            say(f"{point}: given up, as {arm.name}'s warm-up failed: {block.problem}")
            return False
    return True


def run_block(plan: Plan, arm: Arm, point: Point, turn: int, generator: LoadGenerator) -> Block:
    """Run one block and return all there is to know of it; nothing that a server does raises an error."""
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
    seen = {**between(before, after), "kv_use_peak": kv.most, "no_claim_because": arm.server.no_claim_because}
    if "failed" in answer:
        why = without_keys(answer["failed"])
        return Block(arm.name, point, turn, 0.0, (), failed=why, server=seen, gpus=power.found)
    found: dict[str, Any] = answer["result"]
    return Block(
        arm=arm.name,
        point=point,
        turn=turn,
        seconds=found["duration"],
        requests=requests_of(found, point),
        server=seen,
        gpus=power.found,
        processor_share=answer["processor_share"],
    )


def line(block: Block, blocks: int) -> str:
    """Return what is said of a block when it is done."""
    said = block.problem or f"{block.throughput:,.1f} tok/s, {block.per_user:,.1f} a user"
    return f"{block.point}: {block.arm} {block.turn + 1}/{blocks}: {said}"
