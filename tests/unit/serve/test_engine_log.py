"""Logs of real failed vLLM 0.32 starts (tails in engine_logs/): the first cause, and known fixes.

The logs come from `vllm serve` with a wrong option, too little memory or a damaged copy of kimi-mini.
"""

import re
from pathlib import Path

import pytest

from halfbyte.cli.serve import serve_command
from halfbyte.serve.engine_log import EngineLog, clean, known_error, known_errors, phase_of
from halfbyte.serve.launch_data import engines
from halfbyte.serve.run import engine_error

LOGS = Path(__file__).parent / "engine_logs"
# The start of the engine message that the user sees.
FIRST_CAUSES = {
    "bad-json": "OSError: It looks like the config file at '/models/badjson/config.json' is not a valid JSON file.",
    "cut-shard": "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
    "long-context": "User-specified max_model_len (100000) is greater than the derived max_model_len",
    "no-config": "Invalid repository ID or local directory specified: '/models/empty'.",
    "no-kv-memory": "ValueError: No available memory for the cache blocks.",
    "no-quant-algo": "Missing 'quant_algo' in quantization config",
    "offline": "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder",
    "port-in-use": "OSError: [Errno 98] Address already in use",
    "remote-code": "The repository /models/remotecode contains custom code which must be executed",
    "scale-of-an-ignored-module": "ValueError: There is no module or parameter named 'lm_head.input_scale'",
    "too-many-experts": "KeyError: 'layers.1.mlp.experts.24.down_proj.weight'",
    "unknown-architecture": "Model architectures ['KimiK99ForCausalLM'] are not supported for now.",
    "unknown-model-type": "The checkpoint you are trying to load has model type `kimi_k99` but Transformers does not",
    "wrong-option": "vllm: error: unrecognized arguments: --no-such-flag",
}


def read(path: Path) -> EngineLog:
    log = EngineLog(path)
    log.follow()
    return log


def written(folder: Path, text: str) -> EngineLog:
    (folder / "engine.log").write_text(text, newline="")
    return read(folder / "engine.log")


def test_errors_marked_as_seen_are_in_a_recorded_log():
    assert {known.name for known in known_errors() if known.seen} == set(FIRST_CAUSES)
    assert {path.stem for path in LOGS.iterdir()} == set(FIRST_CAUSES)


@pytest.mark.parametrize("name", FIRST_CAUSES)
def test_the_root_cause_of_a_recorded_log_is_a_known_error(name):
    log = read(LOGS / f"{name}.log")
    assert log.error().startswith(FIRST_CAUSES[name])
    known = known_error(log.error())
    assert known is not None
    assert known.name == name
    shown = engine_error(log, "the engine did not start: exit code 1")
    assert f"\ncause: {known.cause}" in shown.what
    assert shown.fix == known.fix


def test_every_known_error_has_a_fix():
    names = [known.name for known in known_errors()]
    assert len(names) == len(set(names))
    for known in known_errors():
        assert all((known.cause, known.fix, known.source))
        assert not known.pattern.search(""), f"{known.name} fits everything"


def test_fixes_name_existing_options_and_settings():
    options = {name for parameter in serve_command.params for name in parameter.opts}
    for known in known_errors():
        text = re.sub(r"`[^`]*`", "", known.fix)  # commands of others
        assert set(re.findall(r"--[a-z][a-z-]*", text)) <= options, known.name
        for setting in re.findall(r"--set (\S+)", text):
            name = setting.partition("=")[0]
            assert name.startswith("env.") or name in engines()["vllm"].flags, known.name


# As their sources write them; no machine here could be made to.
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("RuntimeError: operator torchvision::nms does not exist", "torchvision"),
        ("AttributeError: '_lib_fn_wrapper' object has no attribute 'get'", "llvmlite"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB.", "cuda-out-of-memory"),
        ("RuntimeError: CUDA error: operation not permitted when stream is capturing", "cuda-graphs"),
        ("ValueError: Free memory on device cuda:0 (3.1/95.0 GiB) on startup is less than desired GPU memory "
         "utilization (0.9, 85.5 GiB).", "gpu-taken"),
        ("ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: "
         "75. Current capability: 70.", "gpu-too-old"),
        ("NotImplementedError: No NvFp4 MoE backend supports the deployment configuration.", "no-moe-kernel"),
        ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
         "{'EngineCore_0': -4}", "sigill-amx"),
        ("OSError: [Errno 98] Address already in use", "port-in-use"),
        ("ValueError: experts.7.up_proj: input_scale is missing", "missing-input-scale"),
        ("KeyError: 'model.layers.1.mlp.experts.192.gate_proj.weight_scale'", "too-many-experts"),
    ],
)  # fmt: skip
def test_more_error_lines_are_known(line, name):
    assert known_error(line).name == name


def test_an_unknown_error_is_shown_unchanged(tmp_path):
    log = written(tmp_path, "Traceback (most recent call last):\nZeroDivisionError: division by zero\n")
    shown = engine_error(log, "the engine did not start: exit code 1")
    assert shown.what == "the engine did not start: exit code 1\nZeroDivisionError: division by zero"
    assert shown.fix == "read the end of the log"


def test_the_error_of_a_child_process_is_the_cause(tmp_path):
    core, server = "(EngineCore pid=2) ERROR 11-15 18:32:37 [core.py:1510] ", "(APIServer pid=1) "
    log = written(
        tmp_path,
        f"(APIServer pid=1) WARNING 11-15 18:00:00 [x.py:1] OSError: only a warning\n"
        f"(Worker pid=3) ERROR 11-15 18:32:36 [worker.py:9] KeyError: 'inner'\n"
        f"(Worker pid=3) ERROR 11-15 18:32:36 [worker.py:9] \n"
        f"(Worker pid=3) ERROR 11-15 18:32:36 [worker.py:9] The above exception was the direct cause of the following"
        f" exception:\n(Worker pid=3) ERROR 11-15 18:32:36 [worker.py:9] ValueError: the cause\n"
        f"{core}RuntimeError: Worker failed with error 'the cause', please check the stack trace above for the root"
        f" cause\n{server}RuntimeError: Engine core initialization failed. See root cause above.\n",
    )
    assert log.error() == "ValueError: the cause"


def test_an_error_that_the_process_survived_is_not_the_cause(tmp_path):
    core = "(EngineCore pid=7) "
    log = written(
        tmp_path,
        f"{core}ERROR 11-15 19:05:31 [__init__.py:72] Failed to load plugin other\n"
        f"{core}ERROR 11-15 19:05:31 [__init__.py:72] ModuleNotFoundError: No module named 'other'\n"
        f"{core}INFO 11-15 19:05:33 [core.py:99] Initializing a V1 LLM engine\n"
        f"{core}ERROR 11-15 19:05:39 [core.py:1510] ValueError: the cause\n"
        f"{core}INFO 11-15 19:05:40 [multiproc_executor.py:479] [shutdown] Executor: waiting for worker exit count=0\n",
    )
    assert log.error() == "ValueError: the cause"


def test_a_repeated_error_at_the_end_of_a_chain_is_not_the_cause(tmp_path):
    log = written(
        tmp_path,
        "ValueError: the cause\n\nDuring handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\nException: WorkerProc initialization failed due to an exception in a "
        "background process. See stack trace for root cause.\nOSError: what came of it\n",
    )
    assert log.error() == "ValueError: the cause"


def test_without_an_exception_the_last_line_is_shown(tmp_path):
    assert written(tmp_path, "one\ntwo\n\n").error() == "two"
    assert written(tmp_path, "one\nwithout an end").error() == "without an end"
    assert written(tmp_path, "").error() == ""
    assert engine_error(written(tmp_path, ""), "x").what == "x\n(its log is empty)"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Loading safetensors checkpoint shards:  33% Completed | 3/9 [00:00<00:00]", "loading weights 3 of 9"),
        ("Starting to load model /models/kimi-mini...", "loading weights"),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  40%|####  | 14/35 [00:01<00:01]",
         "capturing CUDA graphs 14 of 35"),
        ("Warming up model for the compilation...", "compiling"),
        ("Available KV cache memory: 1.00 GiB", "profiling memory"),
        ("Application startup complete.", "ready"),
        ("The server is fired up and ready to roll!", "ready"),
        ("nothing of the kind", None),
    ],
)  # fmt: skip
def test_startup_phases_are_recognized(line, phase):
    assert phase_of(line) == phase


def test_a_recorded_log_shows_the_last_phase():
    assert read(LOGS / "too-many-experts.log").phase == "loading weights 1 of 9"
    assert read(LOGS / "no-kv-memory.log").phase == "profiling memory"
    assert read(LOGS / "wrong-option.log").phase == "starting"


def test_a_log_is_read_as_it_grows(tmp_path):
    log = written(tmp_path, "Loading safetensors checkpoint shards:   0% Completed | 0/2\r")
    assert log.phase == "loading weights 0 of 2"
    assert not log.follow()
    with log.path.open("a", newline="") as file:
        file.write("Loading safetensors checkpoint shards:  50% Completed | 1/2")  # a bar: no end of line
    assert log.follow()
    assert log.phase == "loading weights 1 of 2"


def test_clean_removes_control_characters():
    assert clean("a\x1b[31mb\x1b]0;title\x07c\x9b2Jd\u202ee\x00f\u2028g\th") == "abcdefg    h"
    assert clean("Kimi 月之暗面 é ✓") == "Kimi 月之暗面 é ✓"
    everything = "".join(map(chr, range(0x110000)))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200e\u202a-\u202e\u2066-\u2069]", clean(everything))
