"""Options of the commands that measure a running server: probe, eval, bench."""

from dataclasses import dataclass
from pathlib import Path

from halfbyte.options.declare import argument, option

LONGEST_S = 604_800.0  # a week


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """Options of `halfbyte probe`."""

    url: str = argument("URL", required=False, default="")
    against: str | None = option(
        "--against", metavar="URL2", help="A server to compare with: the source, on the same engine."
    )
    only: tuple[str, ...] = option(
        "--only",
        default=(),
        metavar="NAME",
        help="Run only this probe or group; repeatable.",
        recipe="the list of probes or groups to run",
    )
    skip: tuple[str, ...] = option(
        "--skip",
        default=(),
        metavar="NAME",
        help="Skip this probe or group; repeatable.",
        recipe="the list of probes or groups to skip",
    )
    context: str = option(
        "--context", default="auto", metavar="auto|N", help="Longest prompt in tokens; auto uses the server's limit."
    )
    budget: str | None = option(
        "--budget",
        metavar="TIME",
        help="Time limit, e.g. 90s, 5m, 1h. Runs one probe of every group first.",
        pattern=r"^[0-9]+(\.[0-9]+)?[smh]$",
        recipe="the time budget, such as 90s, 5m or 1h",
    )
    profile: str = option(
        "--profile",
        default="kimi",
        metavar="NAME",
        kind="profile",
        help="Question set: kimi or mini.",
        recipe="the probe profile: kimi or mini",
    )
    folder: Path = option(
        "-o", "--out", default=Path("probe"), metavar="DIR", help="Folder for probe.jsonl and probe.json."
    )
    seed: int = option("--seed", default=0, least=0, help="Random seed of questions and sampling.")
    model: str | None = option("--model", metavar="NAME", help="Model name, if a server has several.")
    timeout_s: float | None = option(
        "--timeout", above=0, most=LONGEST_S, help="Timeout of one request, in seconds.  [default: the profile's]"
    )
    tool_calls: Path | None = option(
        "--tool-calls",
        metavar="FILE",
        kind="file",
        help="Requests for the tool probes, in the format of the K2 vendor verifier.",
    )
    list: bool = option("--list", default=False, help="List the probes with their reasons and exit.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """Options of `halfbyte eval`."""

    url: str = argument("URL", required=False, default="")
    suite: str = option(
        "--suite",
        default="kimi-card",
        metavar="NAME",
        kind="suite",
        help="kimi-card, kimi-card-3shot, mxfp4-card, chat, coding, mini; --list shows all.",
        recipe="the name of the suite, such as kimi-card",
    )
    against: str | None = option(
        "--against", metavar="URL2", help="Also evaluate this server, and compare item by item."
    )
    baseline: Path | None = option("--baseline", metavar="RESULTS", help="Compare with the results of an earlier run.")
    folder: Path | None = option(
        "-o", "--out", metavar="DIR", kind="folder", help="Results folder.  [default: eval-NAME]"
    )
    data_dir: Path | None = option(
        "--data-dir",
        metavar="DIR",
        kind="existing folder",
        help="Folder with the data sets, instead of the Hub.",
        recipe="the folder with the datasets, instead of the Hub",
    )
    limit: int | None = option(
        "--limit",
        least=1,
        help="Use only the first N items of each task.",
        recipe="the number of items per task, at least 1",
    )
    model: str | None = option("--model", metavar="NAME", help="Model name, if a server has several.")
    concurrency: int | None = option("--concurrency", least=1, help="Concurrent requests.  [default: the suite's]")
    margin: float = option(
        "--margin",
        default=0.01,
        above=0,
        below=1,
        help="Non-inferiority margin, as a fraction.",
        recipe="the non-inferiority margin, between 0 and 1",
    )
    timeout_s: float = option(
        "--timeout", default=600.0, above=0, most=LONGEST_S, help="Timeout of one request, in seconds."
    )
    same_server: bool = option(
        "--same-server",
        default=False,
        help="Resume an earlier run although the server cannot be identified as the same.",
    )
    list: bool = option("--list", default=False, help="List the suites with their tasks and exit.")

    @property
    def results(self) -> Path:
        """The results folder, which by default is named after the suite."""
        return self.folder or Path(f"eval-{self.suite}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of `halfbyte bench`."""

    url: str = argument("[URL]", required=False, default="")
    against: str | None = option(
        "--against", metavar="URL2", help="Also measure this server, in alternating blocks, and compare."
    )
    shape: tuple[str, ...] = option(
        "--shape",
        default=("1k:1k",),
        help="Input and output tokens; repeatable.",
        recipe="the list of prompt:answer lengths, as 1k:1k",
    )
    concurrency: str = option(
        "--concurrency",
        default="1,8,64",
        items=int,
        help="Concurrent requests.",
        recipe="the list of concurrency levels",
    )
    content: str = option(
        "--content", default="random", help="Prompt content: random, prose, code, json, or several separated by commas."
    )
    chat: bool = option("--chat", default=False, help="Use the chat template. Prompt lengths are then approximate.")
    blocks: int = option(
        "--blocks",
        default=6,
        least=1,
        most=10_000,
        help="Blocks per server and point; a claim needs at least 6.",
        recipe="the blocks per measuring point; at least 6 for a claim",
    )
    slo: str | None = option("--slo", help="Count requests that meet these targets, e.g. ttft=1s,tpot=50ms.")
    gpus: str | None = option(
        "--gpus", metavar="NxGPU", kind="gpus", help="The server's GPUs, e.g. 8xB200, for the roofline."
    )
    tokenizer: str | None = option(
        "--tokenizer", metavar="DIR", help="Tokenizer folder or Hub name.  [default: the server's checkpoint folder]"
    )
    model: str | None = option("--model", help="Model name, if the server has several.")
    emulated: bool = option("--emulated", default=False, help="The server emulates its format: make no speed claims.")
    imported: tuple[Path, ...] = option(
        "--import",
        default=(),
        kind="file",
        help="Result files of server A, one per server start (vLLM, guidellm, aiperf or halfbyte).",
    )
    against_results: tuple[Path, ...] = option(
        "--against-results", default=(), kind="file", help="Result files of server B, if both cannot run at once."
    )
    timeout_s: float = option(
        "--timeout", default=600.0, above=0, most=LONGEST_S, help="Timeout of one request, in seconds."
    )
    seed: int = option("--seed", default=0, help="Random seed of the prompts.")
    trust_remote_code: bool = option(
        "--trust-remote-code",
        default=False,
        help="Allow custom tokenizer code (Kimi needs it).",
        recipe="true to run the tokenizer's own Python code, which Kimi's tokenizer requires",
    )
    folder: Path = option(
        "-o",
        "--out",
        default=Path("bench"),
        kind="folder",
        help="Folder for bench.jsonl, .json and .svg. Resumes an existing run.",
    )
