"""Rotary embeddings and attention masks of a chunk of rows, built with transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import masking_utils

if TYPE_CHECKING:
    from halfbyte.forward.model import TextModel

_masks: Any = masking_utils  # its functions lack type annotations


class RowPositions(Protocol):
    """Positions and document boundaries of rows of tokens."""

    @property
    def real(self) -> NDArray[np.bool_]:
        """False for padding."""
        ...

    @property
    def positions(self) -> NDArray[np.int32]:
        """The positions for RoPE."""
        ...

    @property
    def documents(self) -> NDArray[np.int32]:
        """Document numbers; tokens attend only to tokens of the same document."""
        ...

    @property
    def left_padded(self) -> bool:
        """Whether there is one document per row, with transformers' mask for attention_mask=real."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class AttentionInputs:
    """RoPE and mask of a chunk of rows; the mask is None for plain causal attention."""

    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor | None


def attention_inputs(
    model: TextModel, rows: RowPositions, chunk: slice, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
) -> AttentionInputs:
    """Return RoPE and mask of some rows."""
    positions = torch.from_numpy(rows.positions[chunk]).to(device, torch.int64)
    shaped = torch.empty((*positions.shape, 0), dtype=dtype, device=device)  # only its shape, dtype and device are read
    with torch.no_grad():
        cos, sin = model.rotary().to(device)(shaped, positions)
    return AttentionInputs(
        cos, sin, _padded(model, rows, chunk, shaped) if rows.left_padded else _packed(model, rows, chunk, shaped)
    )


def _padded(model: TextModel, rows: RowPositions, chunk: slice, shaped: torch.Tensor) -> torch.Tensor | None:
    real = torch.from_numpy(rows.real[chunk]).to(shaped.device)
    return _masks.create_causal_mask(model.config, shaped, real, None)


def _packed(model: TextModel, rows: RowPositions, chunk: slice, shaped: torch.Tensor) -> torch.Tensor | None:
    documents = torch.from_numpy(rows.documents[chunk]).to(shaped.device, torch.int64)
    several = bool((documents != documents[:, :1]).any())
    causal = _masks.causal_mask_function
    within = _masks.and_masks(causal, _masks.packed_sequence_mask_function(documents))
    count, length = documents.shape
    return _masks.ALL_MASK_ATTENTION_FUNCTIONS[model.attention](
        batch_size=count,
        q_length=length,
        kv_length=length,
        mask_function=within if several else causal,
        allow_is_causal_skip=not several,
        dtype=shaped.dtype,
        device=shaped.device,
        config=model.config,
    )
