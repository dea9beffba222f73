"""What a pass takes of the device, counted from shapes alone, and how it runs where less of that is there.

The count goes through all that a pass allocates; K2.6's numbers are of 262,144 tokens, in GB:

    layers    the experts of a layer as they are stored (9.5), of the layer that runs and of the one that comes
    others    a layer's other weights in BF16 (0.3; the dense layer's 1.0): coming, running, and just gone
    output    the encoded experts of a layer (9.5): all of them, or three groups that fill a slot each (0.8)
    tokens    [T, D] three times (3.8 each): hidden states, what experts are given, the sum of what they return
    routed    of each token's choices, 300 bytes (0.6): indices, weights, their sort and its buffers, norms and amax
              that the observer keeps, and, while the next layer runs already, what sums them up
    work      the largest of: a chunk in attention (q, k, v, what they are made of, copies that its kernel may make), a
              chunk in a dense MLP, a chunk in norms and router (FP32), a piece of an expert's tokens (with the decoded
              matrices, and the piece before it); or, in the encoder, tables, records, the sweep's list, and BF16 of a
              group where the stored format is not encoded directly
    CUDA      its context, kernels, cuBLAS's workspaces, and what the allocator cannot use: 1.6, not counted but allowed

Chunks and pieces have the same size in every mode, so that a mode changes where things lie, and no bit of them. What
lies on the host are the slots (page-locked), and in `lean` the hidden states.

Nothing here needs PyTorch: `halfbyte plan` states the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.cuda.projections import DIRECT, Projection, encodes_experts, stacks_by_layer
from halfbyte.cuda.shares import most_rows
from halfbyte.errors import CheckpointError, MachineError
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ROUTED

SLOT_NBYTES = 1 << 28  # a quarter of a gigabyte takes 5 ms over PCIe: longer than any latency on the way
CHUNK_TOKENS = 1 << 14  # through attention at a time
EXPERT_TOKENS = 1 << 14  # through an expert at a time: the busiest one may have most of the tokens
GROUPS_AT_ONCE = 3  # of output in `lean`: one that is made, two on their way
_SCALARS_NBYTES = 64  # of an expert: tensor scales and input scales
_CUDA_NBYTES = 3 << 29
_ROUTED_NBYTES = 300
_TABLE_NBYTES = 16 * 9 * 128 * 8  # of an expert, see numerics/gpu/recode_tables.py
_CLOSE_BLOCKS, _BLOCK, _CLOSE_NBYTES = 1 << 24, 16, 8  # see numerics/gpu/sweep.py
_BF16, _F32 = 2, 4


@dataclass(frozen=True, slots=True)
class Mode:
    """How a pass uses the device."""

    name: str
    layers: int  # that are there at once: one that runs, and one that comes
    grouped: bool  # output is made and copied back some experts at a time, after the layer has run
    offloads: bool  # hidden states lie on the host, and come a chunk at a time

    def __str__(self) -> str:
        return self.name


FULL = Mode("full", 2, grouped=False, offloads=False)
ONE = Mode("one", 1, grouped=False, offloads=False)
LEAN = Mode("lean", 1, grouped=True, offloads=True)
MODES = (FULL, ONE, LEAN)  # fastest first


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes on the device."""

    layer: int  # the largest layer's experts, as they are stored
    output: int  # and as they are written; 0 where the device does not encode them
    group: int  # of the output, what fills a slot
    others: tuple[int, ...]  # each layer's other weights, where layers run
    states: int  # [T, D] once
    routed: int
    forward: int  # what comes and goes while a layer runs: a chunk, before the experts' sums are there
    experts: int  # and a piece of an expert's tokens, when they are
    encode: int  # while it is encoded, all experts at once
    encode_group: int  # and a group of them

    def parts(self, mode: Mode) -> dict[str, int]:
        """Return what is taken when most is, by what takes it."""
        output = min(self.output, GROUPS_AT_ONCE * self.group) if mode.grouped else self.output
        hidden = 0 if mode.offloads else self.states
        before = self.output if not mode.grouped else 0  # of the layer before, while this one runs
        phases = (
            (before, hidden + self.states, self.forward),
            (before, hidden + 2 * self.states, self.experts),
            (output, hidden, self.encode_group if mode.grouped else self.encode),
        )
        largest, tokens, work = max(phases, key=sum)
        return {
            "layers": mode.layers * self.layer,
            "other_weights": _most_in_a_row(self.others, mode.layers + 1),
            "output": largest,
            "tokens": tokens,
            "routed": self.routed,
            "work": work,
            "cuda": _CUDA_NBYTES,
        }

    def total(self, mode: Mode) -> int:
        """Return the whole."""
        return sum(self.parts(mode).values())

    def host(self, mode: Mode) -> int:
        """Return what lies on the host instead."""
        return self.states if mode.offloads else 0


def _most_in_a_row(sizes: Sequence[int], count: int) -> int:
    return max((sum(sizes[at : at + count]) for at in range(len(sizes))), default=0)


def planned_tokens(plan: Plan, devices: int = 1) -> int:
    """Return how many tokens the recipe runs on, at most; of several devices, on the one that has most."""
    calibrate = plan.recipe.calibrate
    return most_rows(calibrate.samples, devices) * calibrate.sequence_length if calibrate is not None else 0


def needs_of(plan: Plan, tokens: int, slot: int = SLOT_NBYTES, devices: int = 1) -> Needs:
    """Return what a pass takes of a device that has so many tokens; 0: no layer is run, only encoded.

    Of several devices each has its share of the tokens and encodes its share of the experts, but has all of them.
    """
    layers = plan.layers or plan.model.layers
    stacks = stacks_by_layer(plan, layers, forward=tokens > 0)
    largest = max([*stacks, []], key=lambda found: sum(one.nbytes for one in found))
    encodes = encodes_experts(plan) and bool(largest)
    count = -(-len(largest[0].linears) // devices) if largest else 0
    group = min(count, group_of(stacks, slot)[0])
    swept = plan.recipe.quantize is not None and plan.recipe.quantize.scales == "mse"
    widths = _Widths.of(plan.model.architecture.text(plan.checkpoint.config)) if tokens else _NOTHING
    return Needs(
        layer=sum(one.nbytes for one in largest),
        output=count * _encoded_nbytes(largest) if encodes else 0,
        group=group * _encoded_nbytes(largest) if encodes else 0,
        others=_other_weights(plan, layers) if tokens else (),
        states=tokens * widths.hidden * _BF16,
        routed=tokens * widths.active * _ROUTED_NBYTES,
        forward=min(tokens, CHUNK_TOKENS) * widths.chunk(),
        experts=min(tokens, EXPERT_TOKENS) * widths.expert_piece() + 3 * widths.hidden * widths.expert * _BF16,
        encode=_encoding(largest, count, group, swept=swept) if encodes else 0,
        encode_group=_encoding(largest, group, group, swept=swept) if encodes else 0,
    )


def group_of(stacks: Sequence[Sequence[Projection]], slot: int) -> tuple[int, int]:
    """Return how many encoded experts a slot holds, and the bytes of a slot that holds at least one."""
    each = max((_encoded_nbytes(found) for found in stacks if found), default=1) + _SCALARS_NBYTES
    return max(1, slot // each), max(slot, each)


def _encoded_nbytes(stacks: Sequence[Projection]) -> int:
    """Return what an expert takes in the output: codes and block scales, of which NVFP4 has most."""
    return sum(one.weights * 9 // 16 for one in stacks)


def _encoding(stacks: Sequence[Projection], experts: int, group: int, *, swept: bool) -> int:
    matrix = max(one.weights for one in stacks)
    found = experts * (_TABLE_NBYTES + matrix // 64 + (1 << 12))  # tables, and records of quality
    if swept:
        blocks = matrix // _BLOCK
        found += min(max(_CLOSE_BLOCKS, blocks), experts * blocks) * _CLOSE_NBYTES
    if any(one.format not in DIRECT for one in stacks):
        found += group * matrix * _BF16
    return found


def _other_weights(plan: Plan, layers: int) -> tuple[int, ...]:
    found = [0] * layers
    for linear in plan.model.linears.values():
        if linear.role != ROUTED and linear.layer is not None and linear.layer < layers:
            found[linear.layer] += linear.weights * _BF16
    for place, info in plan.model.plain.values():
        if place.layer is not None and place.layer < layers:
            found[place.layer] += math.prod(info.shape) * _F32
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Widths:
    """Numbers of config.json, in values of a token."""

    hidden: int
    dense: int
    expert: int
    routed_experts: int
    active: int
    heads: int
    nope: int
    rope: int
    value: int

    @staticmethod
    def of(text: Mapping[str, Any]) -> _Widths:
        """Read them."""
        keys = ("hidden_size", "intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok")
        keys += ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        for key in keys:
            if type(text.get(key)) is not int:
                raise CheckpointError(f"config.json has no {key}", where="config.json", fix="download it again")
        return _Widths(*(text[key] for key in keys))

    def chunk(self) -> int:
        """Return the bytes of a token where most are taken before the experts' turn."""
        q, kv, out = (self.heads * width for width in (self.nope + self.rope, self.nope + self.value, self.value))
        # Hidden states and their norm; q before and after rope, its turned part; k and v together, k; attention's
        # result twice; and contiguous copies of q, k and v.
        attention = 2 * self.hidden + 3 * q + self.heads * self.rope + kv + 2 * out + 2 * q + out
        dense = 4 * self.hidden + 4 * self.dense
        norms = 2 * self.hidden + 3 * self.hidden * _F32 // _BF16 + 8 * self.routed_experts * _F32 // _BF16
        return max(attention, dense, norms) * _BF16

    def expert_piece(self) -> int:
        """Return the bytes of a token in an expert: what it is given, its products, its output; and the piece before.

        Where rows have padding, the observer takes what is given and what down_proj is given once more.
        """
        return (5 * self.hidden + 6 * self.expert) * _BF16


_NOTHING = _Widths(0, 0, 0, 0, 0, 0, 0, 0, 0)


def choose_mode(need: Needs, free: int | None, where: str) -> Mode:
    """Return the fastest mode that fits into so much memory (None: any); say what would fit, if none does."""
    for mode in MODES:
        if free is None or need.total(mode) <= free:
            return mode
    assert free is not None
    least = need.total(LEAN)
    what = f"this run needs at least {least / 1e9:.1f} GB on the device, where {free / 1e9:.1f} GB are to be had"
    per_token = need.parts(LEAN)["tokens"] + need.routed
    spare = free - least + per_token
    fix = "use a GPU with more memory, or the CPU: --device cpu"
    if per_token and spare > 0:
        share = 100 * spare // per_token
        fix = f"calibrate with {share} % of the tokens (fewer or shorter samples), or free memory" if share else fix
    raise MachineError(what, where=where, fix=fix)
