"""Options of the commands that check a checkpoint: audit, verify, diff, compare, loops."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halfbyte.options.declare import argument, option


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Options of `halfbyte audit`."""

    out_folder: Path = argument("OUT")
    against: Path | None = option("--against", metavar="SRC", help="Source checkpoint to compare with.")
    sample: int = option(
        "--sample",
        default=2,
        least=0,
        help="Groups of linears per layer to encode again and compare.",
        recipe="how many groups of linears per layer to re-encode",
    )
    engine: Literal["vllm"] | None = option(
        "--engine",
        help="Also check that the installed vLLM accepts every tensor name. Needs no GPU.",
        recipe="vllm, to also map every name with the installed vLLM",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """Options of `halfbyte verify`."""

    out_folder: Path = argument("OUT")
    quick: bool = option("--quick", default=False, help="Compare only file sizes, not hashes.")
    source: Path | None = option("--source", metavar="SRC", help="Also compare the source's shards.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """Options of `halfbyte diff`."""

    a: Path = argument("A")
    b: Path = argument("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopsOptions:
    """Options of `halfbyte loops`."""

    out_folder: Path = argument("OUT")
    against: Path | None = option("--against", metavar="SRC", help="Also test this checkpoint, and compare.")
    prompts: int | None = option(
        "--prompts",
        least=1,
        help="Number of prompts, at most 64.  [default: all]",
        recipe="how many of the 64 prompts to use, at least 1",
    )
    tokens: int = option(
        "--tokens",
        default=512,
        least=1,
        help="Maximum new tokens per text.",
        recipe="the maximum number of tokens to generate, at least 1",
    )
    seed: int = option("--seed", default=0, help="Random seed of the texts at temperature 0.7.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of `halfbyte compare`."""

    source: Path = argument("SRC")
    out_folder: Path | None = argument("[OUT]", required=False)
    recipe: str | None = option(
        "-r",
        "--recipe",
        kind="recipe",
        metavar="NAME|FILE",
        help="Instead of OUT: encode each layer of SRC with this recipe in memory. Writes no checkpoint.",
    )
    overrides: tuple[str, ...] = option(
        "--set", default=(), metavar="KEY=VALUE", help="With -r: override a key of the recipe."
    )
    stats: Path | None = option(
        "--stats", help="With -r: statistics from `halfbyte calibrate`, for calibrated scales and pruning."
    )
    data: tuple[str, ...] = option(
        "--data",
        required=True,
        metavar="[DOMAIN=]FILE[:COLUMNS]",
        help="Texts: .jsonl, .parquet or .txt. {column}=FILE reads the domain from a column.",
        recipe="the list of text files, each DOMAIN=FILE or DOMAIN=FILE:COLUMNS",
    )
    samples: int | None = option(
        "--samples",
        least=1,
        help="Rows, taken evenly from the files.  [default: up to 128]",
        recipe="the number of rows, at least 1",
    )
    length: int = option(
        "--length", default=512, least=2, help="Tokens per row.", recipe="the number of tokens per row, at least 2"
    )
    rows: Literal["packed", "padded"] = option(
        "--rows",
        default="packed",
        help="packed: full rows of several texts, masked from each other. padded: one text per row.",
    )
    score: Literal["all", "answers"] = option(
        "--score", default="all", help="Score all tokens, or only the assistant's (Kimi's template)."
    )
    dtype: Literal["float32", "bfloat16"] = option(
        "--dtype",
        default="float32",
        help="float32 isolates the checkpoints' difference; bfloat16 adds rounding in both models.",
    )
    activations: Literal["off", "as-served"] = option(
        "--activations",
        default="off",
        help="as-served quantizes OUT's activations as engines do.",
        recipe="off, or as-served to quantize activations as engines do",
    )
    kv: Literal["off", "fp8", "fp8-scaled"] = option(
        "--kv",
        default="off",
        help="Emulate OUT's FP8 KV cache: cast, or scaled by its k_scale, as in vLLM 0.17 to 0.24.",
        recipe="off, fp8 or fp8-scaled for the KV cache",
    )
    by_layer: bool = option(
        "--by-layer",
        default=False,
        help="Also measure the error that each layer adds, by running it on SRC's hidden states.",
    )
    device: str = option(
        "--device", default="cpu", kind="device", metavar="cpu|cuda", help="Where layers run; cuda is one GPU."
    )
    threads: int | None = option("--threads", least=1, help="Compute threads.  [default: cores]")
    file: Path | None = option("-o", "--out", kind="file", help="Write the full report as JSON, with arrays for plots.")
