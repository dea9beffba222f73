"""The capabilities of each backend: one table, checked before anything is read, and printed in docs/convert.md.

This module imports neither PyTorch nor Ray, because `plan` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from halfbyte.checkpoint.atomic_write import WAITING_NBYTES
from halfbyte.errors import HalfbyteError, RecipeError, UsageError
from halfbyte.methods.registry import METHODS
from halfbyte.recipe.decisions import Recipe

LOCAL, CUDA, RAY = "local", "cuda", "ray"
BACKENDS = {  # name -> how it is selected
    LOCAL: "the default",
    CUDA: "`--device cuda`",
    RAY: "`--ray ADDRESS`",
}
_OPEN_SHARDS = 3  # of a GPU run: one being hashed, one being written, one shared by two layers


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a run. They affect its duration; with calibration, the device may also change the last bits."""

    threads: int | None = None  # None: two more than cores
    device: str = "cpu"
    device_memory: int | None = None  # None: all free memory
    ray: str | None = None  # address of a Ray cluster
    mark: str = ""  # part of temporary shard names, if several attempts may write the same shard

    @property
    def on_cpu(self) -> bool:
        """Return whether the run uses no GPU."""
        return self.device == "cpu"

    @property
    def backend(self) -> str:
        """Return the name of the backend that these resources select."""
        if self.ray is not None:
            return RAY
        return LOCAL if self.on_cpu else CUDA

    def waiting_nbytes(self) -> int | None:
        """Return the bytes of each open shard that may stay in memory until hashed; the rest is read again from disk.

        An NVFP4 shard starts with the scales of all its experts, so hashing cannot start before the last expert is
        encoded. GPU machines have enough memory to buffer until then, and their runs are limited by the disk.
        """
        if self.on_cpu:
            return None
        from halfbyte.machine.resources import memory_facts  # noqa: PLC0415 - only for GPU runs

        memory = memory_facts()
        known = [nbytes for nbytes in (memory.available_nbytes, memory.limit_nbytes) if nbytes is not None]
        return max(min(known) // _OPEN_SHARDS // 4, WAITING_NBYTES) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A run before it starts: its recipe and the options that a backend may not support."""

    recipe: Recipe
    resources: Resources
    measures: bool  # calibrates, instead of reading statistics from a file
    writes: bool = True  # False: `calibrate`, which writes only statistics
    remote: bool = False  # the source is an address
    pushes: bool = False

    @property
    def backstop_on_all_tokens(self) -> bool:
        """Return whether experts with few tokens run on all tokens."""
        rule = self.recipe.quantize.input_scale if self.recipe.quantize else None
        return self.measures and rule is not None and rule.backstop == "all_experts" and bool(rule.min_tokens)

    @property
    def public_reap(self) -> bool:
        """Return whether the run also collects the statistics of the public REAP code."""
        return self.measures and self.recipe.calibrate is not None and bool(self.recipe.calibrate.public_reap)

    @property
    def propagates_quantized(self) -> bool:
        """Return whether hidden states must come from the quantized weights."""
        return self.measures and self.recipe.calibrate is not None and self.recipe.calibrate.propagate == "quantized"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why a backend lacks a capability: the parts of the error, in which {device} and {recipe} are replaced."""

    what: str
    where: str
    fix: str
    error: type[HalfbyteError] = UsageError

    def as_error(self, *, device: str = "", recipe: str = "") -> HalfbyteError:
        """Return the error to raise."""
        what, where = (text.format(device=device, recipe=recipe) for text in (self.what, self.where))
        return self.error(what, where=where, fix=self.fix)


def _never(_: Request) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Capability:
    """A row of the table: its name, whether a request needs it, and the backends that lack it, with the reason."""

    name: str
    needed: Callable[[Request], bool] = _never  # by default, every backend supports it
    missing: Mapping[str, Unsupported] = field(default_factory=dict[str, Unsupported])


DEVICE_MEMORY_WITHOUT_GPU = Unsupported(
    "--device-memory requires a GPU", "--device-memory", "add --device cuda, or omit --device-memory"
)
_NOT_IMPLEMENTED = Unsupported(
    "'propagate: quantized' is not implemented",
    "{recipe}",
    "set calibrate.propagate to unquantized, as in ModelOpt",
    RecipeError,
)

CAPABILITIES = (
    Capability("formats and methods without calibration data"),
    Capability("calibration while quantizing"),
    Capability("statistics from a file (`--stats`)"),
    Capability(
        f"methods that need Hessians ({', '.join(f'`{name}`' for name, row in METHODS.items() if row.needs_hessians)})",
        lambda run: run.recipe.quantize is not None and run.recipe.quantize.needs_hessians,
        {
            RAY: Unsupported(
                "--ray does not support GPTQ: the Hessians of expert inputs are too large to send between nodes",
                "--ray",
                "omit --ray: this recipe runs on one machine",
            ),
        },
    ),
    Capability(
        "`input_scale.backstop: all_experts`",
        lambda run: run.backstop_on_all_tokens,
        {
            CUDA: Unsupported(
                "the backstop all_experts is not supported on the GPU yet",
                "{recipe}",
                "use --device cpu for this recipe, or another backstop",
                RecipeError,
            ),
        },
    ),
    Capability(
        "`calibrate.public_reap: true`",
        lambda run: run.public_reap,
        {
            CUDA: Unsupported(
                "'public_reap: true' is supported on the CPU only",
                "{recipe}",
                "pass --device cpu, or set calibrate.public_reap to false",
                RecipeError,
            ),
        },
    ),
    Capability(
        "`calibrate.propagate: quantized`",
        lambda run: run.propagates_quantized,
        dict.fromkeys(BACKENDS, _NOT_IMPLEMENTED),
    ),
    Capability("expert pruning"),
    Capability("remote source (`hf://`, `s3://`)"),
    Capability(
        "calibration on a remote source",
        lambda run: run.remote and run.measures,
        {
            RAY: Unsupported(
                "calibration with --ray would fetch the complete remote source on every node",
                "--ray",
                "calibrate on one machine first (halfbyte calibrate SRC -r RECIPE -o STATS), then use --stats STATS",
            ),
        },
    ),
    Capability(
        "upload during the run (`--push`)",
        lambda run: run.pushes,
        {
            RAY: Unsupported(
                "--push cannot be combined with --ray",
                "--push",
                "omit --push, and run `halfbyte publish OUT REPO` afterwards",
            ),
        },
    ),
    Capability(
        "one or several GPUs (`--device cuda:0,cuda:1`)",
        lambda run: not run.resources.on_cpu,
        {
            LOCAL: Unsupported("runs on CPU threads", "--device", "add --device cuda"),
            RAY: Unsupported(
                "--ray runs on CPUs and cannot be combined with --device {device}",
                "--ray",
                "omit --ray or --device",
            ),
        },
    ),
    Capability(
        "limited GPU memory (`--device-memory`)",
        lambda run: run.resources.device_memory is not None,
        {LOCAL: DEVICE_MEMORY_WITHOUT_GPU, RAY: DEVICE_MEMORY_WITHOUT_GPU},
    ),
    Capability("resume after an interruption"),
)


def supports(request: Request) -> list[HalfbyteError]:
    """Return the reasons why the selected backend cannot run a request; none if it can."""
    backend = request.resources.backend
    rows = [row for row in CAPABILITIES if backend in row.missing and row.needed(request)]
    device, recipe = request.resources.device, request.recipe.name
    return [row.missing[backend].as_error(device=device, recipe=recipe) for row in rows]


def refuse_unsupported(request: Request) -> None:
    """Raise the first reason why the selected backend cannot run a request."""
    for reason in supports(request):
        raise reason
