"""Load the source's routed experts to the device layer by layer, and encode them there as a plan's run would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.backends.cuda.encode import EncodedStack, LayerEncoder
from halfbyte.engine.backends.cuda.experts import Stack, StoredExperts
from halfbyte.engine.backends.cuda.placement import SLOT_NBYTES, Projection, encodes_experts, group_of, needs_of
from halfbyte.families.model import Model
from halfbyte.families.weights import Weights
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ENCODE, ROUTED


class PlannedExperts(StoredExperts):
    """Loads the experts of a layer and encodes them; `output` describes the planned checkpoint, `reader` the source.

    `weights` are those of the planned checkpoint. The host encodes experts that the device cannot.
    """

    def __init__(
        self, plan: Plan, output: Model, reader: Reader, weights: Weights, dtype: torch.dtype, device: torch.device
    ) -> None:
        jobs = [job for job in plan.jobs if job.role == ROUTED]
        self._output, self._quantize = output.linears, None
        if any(job.action == ENCODE for job in jobs):
            self._quantize = plan.recipe.quantize
            jobs = jobs if encodes_experts(plan) else []
        super().__init__((linear for job in jobs for linear in job.linears), reader, weights, dtype, device)
        self._group = group_of(list(self._stacks.values()), SLOT_NBYTES)[0]
        if self._quantize is not None and self._stacks:
            need = needs_of(plan, 0)
            self.nbytes = need.layer + need.output + need.encode_group

    def _prepared(self, stacks: Mapping[str, Stack]) -> Mapping[str, Stack]:
        """Encode the stacks, or keep them if the plan does. Linears get the numbers of the output's experts."""
        if self._quantize is None:  # decoding to BF16 gives the same weights before and after writing
            return {name: Stack(self._numbered(stack.of), stack.tensors) for name, stack in stacks.items()}
        projections = {
            name: Projection(name, tuple(self._output[linear.module] for linear in stack.of.linears))
            for name, stack in stacks.items()
        }
        encoder = LayerEncoder(stacks, self._quantize.format, self._quantize.method_of(ROUTED).name, self._group)
        tensors: dict[str, dict[str, torch.Tensor]] = {name: {} for name in stacks}
        begin = 0
        for group in encoder.groups():
            for part in group:
                self._copy(part, begin, len(projections[part.stack.of.name].linears), tensors[part.stack.of.name])
            begin += group[0].count
        return {name: Stack(projections[name], tensors[name]) for name in stacks}

    def _copy(self, part: EncodedStack, begin: int, count: int, tensors: dict[str, torch.Tensor]) -> None:
        """Copy a group of encoded experts into the tensors of its projection."""
        assert self._quantize is not None
        parts = [part.packed, part.scale]
        if part.tensor_scales is not None:
            parts.append(torch.from_numpy(part.tensor_scales).to(self._device))
        for spec, group in zip(FORMATS[self._quantize.format].tensors, parts, strict=True):
            whole = tensors.get(spec.suffix)
            if whole is None:
                whole = tensors[spec.suffix] = group.new_empty((count, *group.shape[1:]))
            whole[begin : begin + part.count] = group

    def _numbered(self, source: Projection) -> Projection:
        """Return a projection in the source's format, with the numbers of the output's experts."""
        numbered = (replace(linear, expert=self._output[linear.module].expert) for linear in source.linears)
        return Projection(source.name, tuple(numbered))
