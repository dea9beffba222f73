"""Options of `halfbyte serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halfbyte.options.declare import argument, option

URL_COMMANDS = ("probe", "eval", "bench")  # --then runs them against the server


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of `halfbyte serve`."""

    out_folder: Path | None = argument("[OUT]", required=False)
    gpus: str | None = option(
        "--gpus",
        metavar="NxGPU",
        kind="gpus",
        help="GPUs to serve on, e.g. 8xB200 or 8x80GB.",
        recipe="the GPUs to serve on, as in 8xB200",
    )
    engine: str | None = option(
        "--engine",
        metavar="NAME[==VERSION]",
        help="vllm, vllm-rocm, sglang or atom.  [default: vLLM; with --write, and without --set and --port, "
        "all compatible ones]",
        recipe="the engine's name, such as vllm",
    )
    docker: bool = option("--docker", default=False, help="Print the Docker script.")
    write: str | None = option("--write", metavar="DIR", help="Write scripts and serve.json into this folder.")
    context: int | None = option(
        "--context",
        least=1,
        help="Context length in tokens.  [default: what fits]",
        recipe="the maximum tokens of prompt and answer together, at least 1",
    )
    concurrency: int | None = option("--concurrency", least=1, help="Concurrent full-length requests that must fit.")
    tp: int | None = option("--tp", least=1, help="Tensor parallel size.  [default: as many GPUs as possible]")
    dcp: int | None = option("--dcp", least=1, help="Decode context parallel size.  [default: 1, or --tp if needed]")
    ep: bool = option("--ep", default=False, help="Use expert parallelism.")
    draft: str | None = option("--draft", metavar="auto|MODEL", help="Eagle3 draft model for speculative decoding.")
    text_only: bool = option("--text-only", default=False, help="Disable image input.")
    port: int | None = option("--port", least=1, most=65535, help="Port of the server.  [default: the engine's]")
    hub: str | None = option(
        "--hub", metavar="ORG/NAME[@COMMIT]", help="Let the engine load this copy of OUT from the Hub."
    )
    settings: tuple[str, ...] = option(
        "--set",
        default=(),
        metavar="NAME=VALUE",
        help="Set an engine option; env.NAME sets an environment variable.",
        recipe="the list of engine settings, each NAME=VALUE, or env.NAME=VALUE",
    )
    like: str | None = option("--like", metavar="NAME", kind="published", help="Print a published command verbatim.")
    run: bool = option("--run", default=False, help="Start the installed engine.")
    emulate: bool = option(
        "--emulate",
        default=False,
        help="With --run: expand 4-bit weights to BF16, to run on any machine.",
        recipe="true to expand 4-bit weights to BF16, which runs on any machine",
    )
    activations: Literal["on", "off"] | None = option(
        "--activations",
        help="With --emulate: also emulate 4-bit activations.",
        recipe="on or off: with emulate, also 4-bit inputs",
    )
    then: tuple[str, ...] = option(
        "--then",
        default=(),
        metavar="NAME,...",
        help=f"With --run: commands to run once the server is ready ({', '.join(URL_COMMANDS)}). "
        "To pass options, repeat --then 'eval --suite mini'.",
    )
    exec: str | None = option(
        "--exec", metavar="COMMAND", help="With --run: shell command to run with HALFBYTE_URL set."
    )
    log: Path | None = option("--log", help="With --run: log file of the engine.  [default: serve.log]")
    guard: str | None = option(
        "--guard",
        metavar="[URL]",
        bare="",
        help="Run a loop-stopping proxy (port 8100) for this server or, with --run, for the engine.",
    )
