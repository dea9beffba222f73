"""Run as a script: engines with the plugin in one process, one after the other; jobs and results are files.

    python emulated_jobs.py FOLDER      reads FOLDER/jobs.json, writes FOLDER/NAME.pt for each

A job "logits" starts an engine and requests every log-probability of a prompt; "load" only builds and loads the model.
The last line of an error is a result too.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import traceback
from pathlib import Path

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # bits can depend on the number of threads
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # this process is the engine
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
OPTIONS = {
    "quantization": "halfbyte_emulate",
    "max_model_len": 128,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 128,
    "enforce_eager": True,
    "max_logprobs": -1,
    "skip_tokenizer_init": True,
    "enable_prefix_caching": False,
    "limit_mm_per_prompt": {"image": 0, "video": 0, "vision_chunk": 0},
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
    "dtype": "float32",
    "attention_backend": "CPU_MLA",
}


def logits(job: dict) -> dict:
    """Log-probabilities of a prompt, also without quantized activations, and the inputs and outputs of quantized
    modules.
    """
    from vllm import LLM

    llm = LLM(job["folder"], **OPTIONS)
    try:
        model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
        methods = quantized_methods(model)
        with noted_calls(methods) as calls:
            served = ask(llm, job["tokens"])
        for method in methods.values():
            method.fakes, method.fake = [], None
        return {"served": served, "weights_only": ask(llm, job["tokens"]), "calls": calls, "quantized": [*methods]}
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def ask(llm, tokens: list[int]):
    import torch
    from vllm import SamplingParams

    asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=-1, detokenize=False)
    found = llm.generate({"prompt_token_ids": tokens}, asked, use_tqdm=False)[0].prompt_logprobs
    return torch.tensor([[at[word].logprob for word in range(len(at))] for at in found[1:]], dtype=torch.float64)


def quantized_methods(model) -> dict:
    """The plugin's methods by the module's name in vLLM."""
    methods = [getattr(module, "quant_method", None) for module in model.modules()]
    return {method.module: method for method in methods if type(method).__name__.startswith("Emulated")}


@contextlib.contextmanager
def noted_calls(methods: dict):
    """Record inputs and outputs of quantized modules."""
    calls = {}
    for name, method in methods.items():
        apply = method.apply

        def noted(layer, *given, name=name, apply=apply, **named):
            out = apply(layer, *given, **named)
            inputs = {"x": given[0]} if given else {key: named[key] for key in ("x", "topk_weights", "topk_ids")}
            calls[name] = {key: tensor.clone() for key, tensor in {**inputs, "out": out}.items()}
            return out

        method.apply = noted
    yield calls
    for method in methods.values():
        del method.apply


def load(job: dict) -> dict:
    """Build and load the model, like a worker."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model

    options = {**OPTIONS, **job.get("options", {})}
    config = EngineArgs(model=job["folder"], **options).create_engine_config()
    with set_current_vllm_config(config):
        join_nobody()
        model = get_model(vllm_config=config)
    return {"quantized": [*quantized_methods(model)]}


def join_nobody() -> None:
    """Create a process group of one, which vLLM's layers need."""
    import torch
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    torch.accelerator.empty_cache = lambda: None  # vLLM's CPU worker does the same
    if not torch.distributed.is_initialized():
        file = f"file://{Path.cwd()}/group"
        init_distributed_environment(1, 0, file, 0, "gloo")
        ensure_model_parallel_initialized(1, 1)


def main(folder: Path) -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.chdir(folder)
    import torch

    from halfbyte.serve.vllm_plugin import register

    register()  # as vLLM would by the entry point, also where the installed halfbyte is another
    for job in json.loads(Path("jobs.json").read_text()):
        os.environ["HALFBYTE_EMULATE_ACTIVATIONS"] = job.get("activations", "on")
        try:
            result = {"logits": logits, "load": load}[job["kind"]](job)
        except Exception as error:
            traceback.print_exc()
            result = {"error": traceback.format_exception_only(error)[-1].strip()}
        torch.save(result, f"{job['name']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
