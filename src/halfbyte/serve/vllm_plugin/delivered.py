"""What the engine's loaders brought to a module. A parameter's first values prove nothing: they lay in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from halfbyte.errors import CheckpointError

Load = Callable[..., Any]
Key = tuple[str, str]  # which part of the module (a projection of an expert, a shard of a fused linear), and the suffix


class Delivered:
    """Notes every tensor that comes to a module."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._seen: set[Key] = set()

    def expert_loader(self, suffix: str, load: Load) -> Load:
        """Return a loader of routed experts that notes what it loads."""

        def note_and_load(
            param: torch.nn.Parameter,
            loaded_weight: torch.Tensor,
            weight_name: str,
            shard_id: str,
            expert_id: int,
            return_success: bool = False,
        ) -> bool | None:
            self._check(param, loaded_weight, f"{expert_id}.{PROJECTIONS[shard_id]}.{suffix}")
            loaded = load(param, loaded_weight, weight_name, shard_id, expert_id, return_success=True)
            if loaded:
                self._seen.add((f"{expert_id}.{PROJECTIONS[shard_id]}", suffix))
            return bool(loaded) if return_success else None

        note_and_load.supports_moe_loading = True  # type: ignore[attr-defined] - vLLM asks for it
        return note_and_load

    def linear_loader(self, suffix: str, load: Load) -> Load:
        """Return a loader of a linear that notes what it loads."""

        def note_and_load(param: torch.nn.Parameter, loaded_weight: torch.Tensor, *shard: Any) -> Any:
            self._check(param, loaded_weight, suffix)
            done = load(param, loaded_weight, *shard)
            self._seen.add((shard_name(shard[0] if shard else None), suffix))
            return done

        return note_and_load

    def refuse_missing(self, parts: Iterable[str], suffixes: Iterable[str]) -> None:
        """Every part of the module must have been given every tensor."""
        wanted = [(part, suffix) for part in parts for suffix in suffixes]
        missing = [key for key in wanted if key not in self._seen]
        if missing:
            part, suffix = missing[0]
            more = f" (nor {len(missing) - 1} others of {self._module})" if len(missing) > 1 else ""
            what = f"vLLM never loaded its {suffix}{more}: it would compute with what lies in memory"
            where = f"{self._module}.{part}" if part else self._module
            raise CheckpointError(what, where=where, fix="halfbyte audit OUT tells what the checkpoint lacks")

    def _check(self, param: torch.nn.Parameter, loaded: torch.Tensor, what: str) -> None:
        """Loaders copy with a cast, and would make other numbers of codes without a word."""
        if param.dtype != loaded.dtype:
            said = f"{what} is {loaded.dtype}, but its header says {param.dtype}"
            raise CheckpointError(said, where=self._module, fix="download the checkpoint again")


PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def shard_name(shard: Any) -> str:
    """Return the name of a part of a fused linear; a linear that is not fused has one part without a name."""
    return "" if shard is None else str(shard)
