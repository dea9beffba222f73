"""Groups of options that several commands share: the recipe, the devices, the shard cache and the upload."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.options.declare import option


def recipe_option(*, required: bool) -> Any:
    """Declare -r."""
    return option(
        "-r",
        "--recipe",
        required=required,
        kind="recipe",
        metavar="NAME|FILE",
        help="Recipe name or file; see `halfbyte recipes list`.",
    )


def layers_option() -> Any:
    """Declare --layers."""
    return option("--layers", least=1, help="Use only the first N layers, for a small checkpoint.")


def example_option() -> Any:
    """Declare --example."""
    return option("--example", metavar="NAME", kind="example", help="Instead of SRC: a built-in example, kimi-k2.6.")


def cache_dir_option() -> Any:
    """Declare --cache-dir."""
    return option(
        "--cache-dir",
        kind="cache folder",
        affects_output=False,
        help="Cache folder for a remote source.  [default: $HALFBYTE_CACHE, or ~/.cache/halfbyte]",
    )


def verify_option(what: str = "First compare the source's shards with their known SHA-256.") -> Any:
    """Declare --verify and --no-verify."""
    return option("--verify/--no-verify", default=True, affects_output=False, help=what)


def threads_option(what: str) -> Any:
    """Declare --threads."""
    return option("--threads", least=1, affects_output=False, help=what)


def ray_option() -> Any:
    """Declare --ray."""
    return option(
        "--ray",
        metavar="ADDRESS",
        affects_output=False,
        help="Run on a Ray cluster: its address, auto (from RAY_ADDRESS), or local to start one here. The output bytes "
        "are the same.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChanges:
    """Changes to the recipe, and the data to calibrate on."""

    overrides: tuple[str, ...] = option("--set", default=(), metavar="KEY=VALUE", help="Override a key of the recipe.")
    layers: int | None = layers_option()
    data: tuple[str, ...] = option(
        "--data",
        default=(),
        metavar="DOMAIN=FILE[:COLUMNS]",
        help="Calibrate on this .jsonl, .parquet or .txt instead of the recipe's data sets.",
    )
    samples: int | None = option("--samples", least=1, help="Number of samples, taken evenly from the --data files.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where layers run and experts are encoded."""

    device: str = option(
        "--device",
        default="cpu",
        kind="devices",
        metavar="cpu|cuda|cuda:N,...",
        help="Where layers run and experts are encoded: the CPU, one GPU, or several (cuda:0,cuda:1), which share the "
        "tokens.",
    )
    memory: str | None = option(
        "--device-memory",
        metavar="SIZE",
        affects_output=False,
        help="Limit on each GPU's memory, e.g. 24GB.  [default: all free memory]",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCache:
    """The cache for the shards of a remote source."""

    size: str | None = option(
        "--cache",
        metavar="SIZE",
        affects_output=False,
        help="Size limit of the cache for a remote source.  [default: 60GB]",
    )
    folder: Path | None = cache_dir_option()


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The upload of finished shards during a run."""

    repo: str | None = option(
        "--push",
        metavar="REPO",
        affects_output=False,
        help="Upload finished shards to this private Hub repository during the run.",
    )
    evict: bool = option(
        "--evict",
        default=False,
        affects_output=False,
        help="Delete local shards once the Hub confirms their hash. Requires --push.",
    )
