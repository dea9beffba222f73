"""The options that a recipe's release block may set, for each stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halfbyte.options.check import AuditOptions, CompareOptions, LoopsOptions
from halfbyte.options.declare import Option, options_of, to_argv
from halfbyte.options.publish import CardOptions, PublishOptions
from halfbyte.options.serve import ServeOptions
from halfbyte.options.server_tests import BenchOptions, EvalOptions, ProbeOptions


@dataclass(frozen=True, slots=True)
class StageOptions:
    """Options of a stage's command; `names` is also the order of the stage's arguments, which its key depends on."""

    model: type
    names: tuple[str, ...]
    required: tuple[str, ...] = ()  # in the recipe, even if the command has a default

    def keys(self) -> Mapping[str, Option]:
        """Return the options by name."""
        return {name: options_of(self.model)[name] for name in self.names}


_SERVER = StageOptions(ServeOptions, ("gpus", "engine", "context", "emulate", "activations", "settings"))
STAGE_OPTIONS: Mapping[str, StageOptions] = {
    "audit": StageOptions(AuditOptions, ("sample", "engine")),
    "loops": StageOptions(LoopsOptions, ("prompts", "tokens")),
    "compare": StageOptions(CompareOptions, ("data", "samples", "length", "activations", "kv"), required=("data",)),
    "scripts": StageOptions(ServeOptions, ("gpus", "engine", "context"), required=("gpus",)),
    "source": _SERVER,
    "serve": _SERVER,
    "probe": StageOptions(ProbeOptions, ("profile", "budget", "only", "skip")),
    "eval": StageOptions(EvalOptions, ("suite", "limit", "data_dir", "margin"), required=("suite",)),
    "bench": StageOptions(BenchOptions, ("shape", "blocks", "trust_remote_code", "concurrency")),
    "card": StageOptions(CardOptions, ("repo", "name", "base_model", "license", "quantized_by")),
    "publish": StageOptions(PublishOptions, ("repo", "private"), required=("repo",)),
}


def stage_argv(stage: str, block: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the arguments for the keys of a stage's block; `without` leaves some of them out."""
    row = STAGE_OPTIONS[stage]
    return to_argv(row.model, block, [name for name in row.names if name not in without])
