"""Record which tensors vLLM's loaders have loaded: parameters start as uninitialized memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from halfbyte.errors import CheckpointError

Load = Callable[..., Any]
Key = tuple[str, str]  # part of the module (a projection of an expert, a shard of a fused linear) and suffix


class LoadedTensors:
    """Records every tensor loaded into a module."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._seen: set[Key] = set()

    def expert_loader(self, suffix: str, load: Load, projections: Mapping[str, str]) -> Load:
        """Return a loader for routed experts that records each tensor; `projections` has their names by shard id."""

        def load_and_record(
            param: torch.nn.Parameter,
            loaded_weight: torch.Tensor,
            weight_name: str,
            shard_id: str,
            expert_id: int,
            return_success: bool = False,
        ) -> bool | None:
            self._check(param, loaded_weight, f"{expert_id}.{projections[shard_id]}.{suffix}")
            loaded = load(param, loaded_weight, weight_name, shard_id, expert_id, return_success=True)
            if loaded:
                self._seen.add((f"{expert_id}.{projections[shard_id]}", suffix))
            return bool(loaded) if return_success else None

        load_and_record.supports_moe_loading = True  # type: ignore[attr-defined] - vLLM requires it
        return load_and_record

    def linear_loader(self, suffix: str, load: Load) -> Load:
        """Return a loader for a linear that records each tensor."""

        def load_and_record(param: torch.nn.Parameter, loaded_weight: torch.Tensor, *shard: Any) -> Any:
            self._check(param, loaded_weight, suffix)
            result = load(param, loaded_weight, *shard)
            self._seen.add((shard_name(shard[0] if shard else None), suffix))
            return result

        return load_and_record

    def refuse_missing(self, parts: Iterable[str], suffixes: Iterable[str]) -> None:
        """Raise CheckpointError unless every tensor of every part has been loaded."""
        wanted = [(part, suffix) for part in parts for suffix in suffixes]
        missing = [key for key in wanted if key not in self._seen]
        if missing:
            part, suffix = missing[0]
            more = f" (nor {len(missing) - 1} others of {self._module})" if len(missing) > 1 else ""
            what = f"vLLM never loaded its {suffix}{more} and would compute with uninitialized memory"
            where = f"{self._module}.{part}" if part else self._module
            raise CheckpointError(what, where=where, fix="run halfbyte audit OUT to list the missing tensors")

    def _check(self, param: torch.nn.Parameter, loaded: torch.Tensor, name: str) -> None:
        """Refuse a different dtype: vLLM's loaders would silently cast codes to other numbers."""
        if param.dtype != loaded.dtype:
            what = f"{name} is {loaded.dtype}, but its header declares {param.dtype}"
            raise CheckpointError(what, where=self._module, fix="download the checkpoint again")


def shard_name(shard: Any) -> str:
    """Return the name of a shard of a fused linear; empty if it is not fused."""
    return "" if shard is None else str(shard)
