"""Place a plan on the devices: how experts are stacked, which rows and experts each device has, and memory needs.

A stack is one projection of all experts of a layer, in one stored format. Experts are in the order of the output file,
so that a range of a stack is a range of the file. With several devices, rows are split at multiples of `SUM_ROWS`, so
that statistics are added in the same parts and order as on one device.

The memory needs are computed from shapes before the run and cover every allocation. The numbers are GB for Kimi-K2.6
with 262,144 tokens:

    layers    stored experts of a layer (9.5), for the running layer and the one being loaded
    others    a layer's other weights in BF16 (0.3; 1.0 for the dense layer): loading, running, and just finished
    output    encoded experts of a layer (9.5): all of them, or three groups of one slot each (0.8)
    tokens    [T, D] three times (3.8 each): hidden states, expert inputs, sum of expert outputs
    routed    300 bytes per token and selected expert (0.6): indices, weights, their sort and its buffers, the
              observer's norms and amax, and their reduction, which overlaps with the next layer
    work      the largest of: a chunk in attention (q, k, v, their inputs, and copies for the kernel), a chunk in a
              dense MLP, a chunk in norms and router (FP32), a piece of an expert's tokens (with the decoded matrices
              and the previous piece); or, in the encoder: tables, quality sums, the sweep's list, and a group in BF16
              if its stored format is not encoded directly
    hessians  with GPTQ: of expert inputs in FP64, 8 * (E * F^2 + D^2) (13.3); encoding then works on one group in FP64
    CUDA      context, kernels, cuBLAS workspaces and allocator fragmentation: a fixed allowance of 1.6

Chunks and pieces have the same size in every mode, so modes do not change the results. The slots (page-locked) and, in
`lean` mode, the hidden states are in host memory.

This module does not import PyTorch, because `halfbyte plan` uses it and prints the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfbyte.calibrate.expert_sums import SUM_ROWS
from halfbyte.errors import CheckpointError, MachineError, UsageError
from halfbyte.families.family import DOWN
from halfbyte.families.linears import StoredLinear
from halfbyte.formats.registry import FORMATS
from halfbyte.methods.rounding import MSE
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ROUTED

if TYPE_CHECKING:
    pass

_DTYPES_IN_STACKS = ("I32", "BF16", "U8", "F8_E4M3", "F32")
SHAPE = "weight_shape"  # also in the headers; checked, not copied
SLOT_NBYTES = 1 << 28  # 5 ms over PCIe, which hides the latency
CHUNK_TOKENS = 1 << 14  # per attention call
HESSIAN_TOKENS = 1 << 13  # per product of expert inputs in FP64
EXPERT_TOKENS = 1 << 14  # per expert call: the busiest expert may receive most of the tokens
GPTQ_EXPERTS = 48  # encoded at once, unless memory is short
_GROUPS_AT_ONCE = 3  # output groups in `lean` mode: one being encoded, two being copied
_SCALARS_NBYTES = 64  # per expert: tensor scales and input scales
_CUDA_NBYTES = 3 << 29
_ROUTED_NBYTES = 300
_TABLE_NBYTES = 16 * 9 * 128 * 8  # per expert, see formats/gpu/encode_int4.py
_CLOSE_BLOCKS, _BLOCK, _CLOSE_NBYTES = 1 << 24, 16, 8  # see formats/gpu/sweep.py
_BF16, _F32, _F64 = 2, 4, 8
_GPTQ_SECTION = 1024  # see formats/gpu/gptq.py


@dataclass(frozen=True, slots=True)
class Projection:
    """One projection of all experts of a layer, as the checkpoint stores it."""

    name: str  # gate, up or down
    linears: tuple[StoredLinear, ...]  # in the order of the stack

    @property
    def format(self) -> str:
        """Return the stored format."""
        return self.linears[0].format

    @property
    def shape(self) -> tuple[int, int]:
        """Return N and K."""
        return self.linears[0].shape

    @property
    def weights(self) -> int:
        """Return the number of weights per expert."""
        return self.shape[0] * self.shape[1]

    def suffixes(self) -> list[str]:
        """Return the suffixes of the tensors that are copied to the device."""
        return [part.suffix for part in FORMATS[self.format].tensors if part.suffix != SHAPE]

    @property
    def nbytes(self) -> int:
        """Return the size of the stack."""
        return sum(linear.parts[suffix].nbytes for linear in self.linears for suffix in self.suffixes())

    def positions(self) -> dict[int, int]:
        """Return the position of each expert."""
        return {int(linear.expert or 0): at for at, linear in enumerate(self.linears)}


def projections(linears: Sequence[StoredLinear]) -> list[Projection]:
    """Return the stacks of a layer's routed experts; none if their formats, shapes or dtypes differ."""
    by_name: dict[str, list[StoredLinear]] = {}
    for linear in sorted(linears, key=lambda linear: linear.module):
        assert linear.projection is not None  # routed experts are MLPs
        by_name.setdefault(linear.projection, []).append(linear)
    stacks = [Projection(name, tuple(members)) for name, members in by_name.items()]
    orders = {tuple(linear.expert for linear in stack.linears) for stack in stacks}
    return stacks if len(orders) == 1 and all(map(_is_uniform, stacks)) else []


def _is_uniform(stack: Projection) -> bool:
    first = stack.linears[0]
    stored = first.parts
    gpu = FORMATS[first.format].gpu
    return (
        gpu is not None
        and gpu.stacks
        and all(
            linear.format == first.format
            and linear.parts.keys() == stored.keys()
            and "bias" not in linear.parts
            and all((info.dtype, info.shape) == (stored[s].dtype, stored[s].shape) for s, info in linear.parts.items())
            and all(info.dtype in _DTYPES_IN_STACKS for s, info in linear.parts.items() if s in stack.suffixes())
            for linear in stack.linears
        )
    )


def encodes_experts(plan: Plan) -> bool:
    """Return whether the device encodes the routed experts of a plan."""
    quantize = plan.recipe.quantize
    supported = quantize is not None and has_encoder(quantize.format, quantize.method_of(ROUTED).name)
    return supported and bool(plan.jobs)  # a plan without jobs only calibrates


def has_encoder(format: str, method: str) -> bool:
    """Whether the device encodes to a format with a method."""
    gpu = FORMATS[format].gpu
    return gpu is not None and method in gpu.encodes


def is_direct(format: str) -> bool:
    """Whether encoders read a stored format directly; others go through BF16."""
    gpu = FORMATS[format].gpu
    return gpu is not None and gpu.direct


def stacks_by_layer(plan: Plan, layers: int, *, forward: bool) -> list[list[Projection]]:
    """Return the stacks of each layer; none if the device neither runs nor encodes its routed experts."""
    routed: list[list[StoredLinear]] = [[] for _ in range(layers)]
    for linear in plan.model.linears.values() if forward or encodes_experts(plan) else ():
        if linear.role == ROUTED and linear.layer is not None and linear.layer < layers:
            routed[linear.layer].append(linear)
    return [projections(linears) if linears else [] for linears in routed]


def row_shares(rows: int, devices: int) -> list[slice]:
    """Return the rows of each device, in order: whole parts, whose counts differ by at most one."""
    return [
        slice(share.start * SUM_ROWS, min(share.stop * SUM_ROWS, rows))
        for share in _even_shares(_row_parts(rows), devices)
    ]


def expert_shares(experts: int, devices: int) -> list[slice]:
    """Return the experts that each device encodes, in order; some ranges are empty if devices outnumber experts."""
    return _even_shares(experts, devices)


def most_rows(rows: int, devices: int) -> int:
    """Return the largest number of rows of a device."""
    return max(share.stop - share.start for share in row_shares(rows, devices))


def refuse_too_many(rows: int, devices: int) -> None:
    """Raise if a device would have no rows."""
    if _row_parts(rows) < devices > 1:
        what = f"{rows} rows of tokens cannot be split over {devices} GPUs: each needs at least {SUM_ROWS}"
        fix = f"use {_row_parts(rows)} of the GPUs, or --samples {SUM_ROWS * devices}"
        raise UsageError(what, where="--device", fix=fix)


def _row_parts(rows: int) -> int:
    return -(-rows // SUM_ROWS)


def _even_shares(count: int, devices: int) -> list[slice]:
    return [slice(count * at // devices, count * (at + 1) // devices) for at in range(devices)]


@dataclass(frozen=True, slots=True)
class Mode:
    """A trade-off between device memory and speed."""

    name: str
    layers: int  # on the device at once: one running, one being loaded
    grouped: bool  # encode and copy back one group of experts at a time, after the layer has run
    offloads: bool  # keep hidden states on the host, and copy one chunk at a time

    def __str__(self) -> str:
        return self.name


FULL = Mode("full", 2, grouped=False, offloads=False)
ONE = Mode("one", 1, grouped=False, offloads=False)
LEAN = Mode("lean", 1, grouped=True, offloads=True)
MODES = (FULL, ONE, LEAN)  # fastest first


@dataclass(frozen=True, slots=True)
class Needs:
    """Device memory in bytes."""

    layer: int  # stored experts of the largest layer
    output: int  # its encoded experts; 0 if the device does not encode them
    group: int  # the part of the output that fills a slot
    others: tuple[int, ...]  # other weights of each layer, if layers run
    states: int  # one [T, D] tensor
    routed: int
    forward: int  # temporaries of a chunk, before the sum of expert outputs is allocated
    experts: int  # temporaries of a piece of an expert's tokens, after that
    encode: int  # temporaries of encoding all experts at once
    encode_group: int  # temporaries of encoding one group
    hessians: int = 0  # of the layer that runs or is encoded, for GPTQ
    selected: int = 0  # copy of the kept experts of a layer, if experts are pruned

    def parts(self, mode: Mode) -> dict[str, int]:
        """Return the peak memory by purpose."""
        output = min(self.output, _GROUPS_AT_ONCE * self.group) if mode.grouped else self.output
        hidden = 0 if mode.offloads else self.states
        previous = self.output if not mode.grouped else 0  # of the previous layer, while this one runs
        phases = (
            (previous, hidden + self.states, self.forward),
            (previous, hidden + 2 * self.states, self.experts),
            (output, hidden, self.selected + (self.encode_group if mode.grouped else self.encode)),
        )
        largest, tokens, work = max(phases, key=sum)
        return {
            "layers": mode.layers * self.layer,
            "other_weights": _most_in_a_row(self.others, mode.layers + 1),
            "output": largest,
            "tokens": tokens,
            "routed": self.routed,
            "work": work,
            "hessians": self.hessians,
            "cuda": _CUDA_NBYTES,
        }

    def total(self, mode: Mode) -> int:
        """Return the total peak memory."""
        return sum(self.parts(mode).values())

    def host(self, mode: Mode) -> int:
        """Return the host memory of offloaded hidden states."""
        return self.states if mode.offloads else 0


def _most_in_a_row(sizes: Sequence[int], count: int) -> int:
    return max((sum(sizes[at : at + count]) for at in range(len(sizes))), default=0)


def planned_tokens(plan: Plan, devices: int = 1) -> int:
    """Return the recipe's maximum number of calibration tokens; with several devices, of the one with the most."""
    calibrate = plan.recipe.calibrate
    return most_rows(calibrate.samples, devices) * calibrate.sequence_length if calibrate is not None else 0


def needs_of(plan: Plan, tokens: int, slot: int = SLOT_NBYTES, devices: int = 1) -> Needs:
    """Return the memory of a run on a device with `tokens` tokens; 0 tokens: layers are only encoded.

    With several devices, each runs its share of the tokens and encodes its share of the experts, but loads all experts.
    """
    layers = plan.layers or plan.model.layers
    stacks = stacks_by_layer(plan, layers, forward=tokens > 0)
    largest = max([*stacks, []], key=lambda layer: sum(stack.nbytes for stack in layer))
    encodes = encodes_experts(plan) and bool(largest)
    count = -(-len(largest[0].linears) // devices) if largest else 0
    group = min(count, group_of(stacks, slot)[0])
    swept = plan.recipe.quantize is not None and plan.recipe.quantize.method_of(ROUTED) is MSE
    widths = _Widths.of(plan.model.family.text(plan.checkpoint.config)) if tokens else _NOTHING
    gptq = encodes and plan.recipe.quantize is not None and plan.recipe.quantize.needs_hessians
    experts = min(tokens, EXPERT_TOKENS) * widths.expert_piece() + 3 * widths.hidden * widths.expert * _BF16

    def encoding(experts: int) -> int:
        if gptq:
            return _gptq_encoding(largest, group if experts == group else min(experts, max(group, GPTQ_EXPERTS)))
        return _encoding(largest, experts, group, swept=swept)

    return Needs(
        layer=sum(stack.nbytes for stack in largest),
        output=count * _encoded_nbytes(largest) if encodes else 0,
        group=group * _encoded_nbytes(largest) if encodes else 0,
        others=_other_weights(plan, layers) if tokens else (),
        states=tokens * widths.hidden * _BF16,
        routed=tokens * widths.active * _ROUTED_NBYTES,
        forward=min(tokens, CHUNK_TOKENS) * widths.chunk(),
        experts=experts + (_hessian_work(largest, tokens) if gptq else 0),
        encode=encoding(count) if encodes else 0,
        encode_group=encoding(group) if encodes else 0,
        hessians=_hessian_nbytes(largest) if gptq and tokens else 0,
        selected=_selected_nbytes(plan, largest) if encodes else 0,
    )


def group_of(stacks: Sequence[Sequence[Projection]], slot: int) -> tuple[int, int]:
    """Return the number of encoded experts per slot, and the slot size, which fits at least one."""
    each = max((_encoded_nbytes(layer) for layer in stacks if layer), default=1) + _SCALARS_NBYTES
    return max(1, slot // each), max(slot, each)


def _encoded_nbytes(stacks: Sequence[Projection]) -> int:
    """Return the bytes of an encoded expert: codes and block scales, for NVFP4, the largest format."""
    return sum(stack.weights * 9 // 16 for stack in stacks)


def _encoding(stacks: Sequence[Projection], experts: int, group: int, *, swept: bool) -> int:
    matrix = max(stack.weights for stack in stacks)
    nbytes = experts * (_TABLE_NBYTES + matrix // 64 + (1 << 12))  # tables and quality sums
    if swept:
        blocks = matrix // _BLOCK
        nbytes += min(max(_CLOSE_BLOCKS, blocks), experts * blocks) * _CLOSE_NBYTES
    if not all(is_direct(stack.format) for stack in stacks):
        nbytes += group * matrix * _BF16
    return nbytes


def _hessian_nbytes(stacks: Sequence[Projection]) -> int:
    shared, own = _input_widths(stacks)
    return (shared**2 + len(stacks[0].linears) * own**2) * _F64


def _hessian_work(stacks: Sequence[Projection], tokens: int) -> int:
    """Return the temporaries of a product of inputs: a piece in FP64, before and after it is weighted."""
    shared, own = _input_widths(stacks)
    return 2 * _F64 * max(min(tokens, HESSIAN_TOKENS) * shared, min(tokens, EXPERT_TOKENS) * own)


def _gptq_encoding(stacks: Sequence[Projection], group: int) -> int:
    """Return the temporaries of encoding a group of experts with GPTQ, see formats/gpu/gptq.py."""
    shared, own = _input_widths(stacks)
    factors = 4 * (shared**2 + group * own**2) * _F64  # the Hessian, the factor, and two copies while it is computed
    matrix = max(stack.weights for stack in stacks)
    sections = max(min(1.0, _GPTQ_SECTION / width) for width in (shared, own))
    return factors + round(group * matrix * (_F64 * (1 + sections) + 3 * _BF16 + 4))  # targets, errors, BF16, codes


def _input_widths(stacks: Sequence[Projection]) -> tuple[int, int]:
    """Return the width of the inputs that all experts share, and of their own activations."""
    widths = {stack.name == DOWN: stack.shape[1] for stack in stacks}
    return widths[False], widths[True]


def _selected_nbytes(plan: Plan, stacks: Sequence[Projection]) -> int:
    """Return the bytes of the kept experts of a layer, which are copied before they are encoded."""
    if plan.recipe.prune is None or not stacks:
        return 0
    return sum(stack.nbytes for stack in stacks) * plan.experts // len(stacks[0].linears)


def _other_weights(plan: Plan, layers: int) -> tuple[int, ...]:
    nbytes = [0] * layers
    for linear in plan.model.linears.values():
        if linear.role != ROUTED and linear.layer is not None and linear.layer < layers:
            nbytes[linear.layer] += linear.weights * _BF16
    for place, info in plan.model.plain.values():
        if place.layer is not None and place.layer < layers:
            nbytes[place.layer] += math.prod(info.shape) * _F32
    return tuple(nbytes)


@dataclass(frozen=True, slots=True)
class _Widths:
    """Dimensions from config.json, in values per token."""

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
        """Read the dimensions from the text config."""
        keys = ("hidden_size", "intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok")
        keys += ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        for key in keys:
            if type(text.get(key)) is not int:
                raise CheckpointError(f"config.json has no {key}", where="config.json", fix="download it again")
        return _Widths(*(text[key] for key in keys))

    def chunk(self) -> int:
        """Return the peak bytes per token before the experts run."""
        q, kv, out = (self.heads * width for width in (self.nope + self.rope, self.nope + self.value, self.value))
        # Hidden states and their norm; q before and after RoPE, and its rotated part; k and v together, k; the
        # attention output twice; and contiguous copies of q, k and v.
        attention = 2 * self.hidden + 3 * q + self.heads * self.rope + kv + 2 * out + 2 * q + out
        dense = 4 * self.hidden + 4 * self.dense
        norms = 2 * self.hidden + 3 * self.hidden * _F32 // _BF16 + 8 * self.routed_experts * _F32 // _BF16
        return max(attention, dense, norms) * _BF16

    def expert_piece(self) -> int:
        """Return the bytes per token in an expert: inputs, products and outputs, and the previous piece.

        If rows have padding, the observer copies the inputs of the expert and of its down projection.
        """
        return (5 * self.hidden + 6 * self.expert) * _BF16


_NOTHING = _Widths(0, 0, 0, 0, 0, 0, 0, 0, 0)


def choose_mode(need: Needs, free: int | None, where: str) -> Mode:
    """Return the fastest mode that fits into `free` bytes (None: unlimited); raise with a suggestion if none does."""
    for mode in MODES:
        if free is None or need.total(mode) <= free:
            return mode
    assert free is not None
    least = need.total(LEAN)
    what = f"this run needs at least {least / 1e9:.1f} GB of device memory, but {free / 1e9:.1f} GB are available"
    per_token = need.parts(LEAN)["tokens"] + need.routed
    spare = free - least + per_token
    fix = "use a GPU with more memory, or --device cpu"
    if per_token and spare > 0:
        share = 100 * spare // per_token
        fix = f"calibrate with {share} % of the tokens (fewer or shorter samples), or free memory" if share else fix
    raise MachineError(what, where=where, fix=fix)
