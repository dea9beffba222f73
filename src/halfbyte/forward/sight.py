"""Where each token of a chunk stands, and what it may look at: rope and attention mask, as transformers makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import masking_utils
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding

from halfbyte.forward.config import TextModel

_masks: Any = masking_utils  # its functions take functions that say nothing of their types


class Placed(Protocol):
    """What rows of tokens say about attention."""

    @property
    def real(self) -> NDArray[np.bool_]:
        """False where a row is padded."""
        ...

    @property
    def positions(self) -> NDArray[np.int32]:
        """The positions that rope turns by."""
        ...

    @property
    def documents(self) -> NDArray[np.int32]:
        """Tokens see only tokens of the same number."""
        ...

    @property
    def left_padded(self) -> bool:
        """One document a row; the mask is transformers' own for attention_mask=real."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """Rope and mask of a chunk of rows; None where causal attention needs no mask."""

    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor | None


def look_around(
    model: TextModel, rows: Placed, chunk: slice, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
) -> Sight:
    """Return rope and mask of some rows."""
    positions = torch.from_numpy(rows.positions[chunk]).to(device, torch.int64)
    shaped = torch.empty((*positions.shape, 0), dtype=dtype, device=device)  # shape, dtype, device: all that is read
    with torch.no_grad():
        cos, sin = DeepseekV3RotaryEmbedding(model.config).to(device)(shaped, positions)
    return Sight(
        cos, sin, _padded(model, rows, chunk, shaped) if rows.left_padded else _packed(model, rows, chunk, shaped)
    )


def _padded(model: TextModel, rows: Placed, chunk: slice, shaped: torch.Tensor) -> torch.Tensor | None:
    real = torch.from_numpy(rows.real[chunk]).to(shaped.device)
    return _masks.create_causal_mask(model.config, shaped, real, None)


def _packed(model: TextModel, rows: Placed, chunk: slice, shaped: torch.Tensor) -> torch.Tensor | None:
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
