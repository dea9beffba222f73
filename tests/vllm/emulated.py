"""One engine at a time, in this process, and the same logits from `halfbyte compare`'s streamed forward."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import torch

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
}
ON_CPU = {"dtype": "float32", "attention_backend": "CPU_MLA"}


def served_log_probabilities(folder: Path, tokens: list[int], **options) -> torch.Tensor:
    """Log-probabilities [L - 1, V] of what follows each token but the last, by a vLLM with the plugin."""
    from vllm import LLM, SamplingParams

    from halfbyte.serve.vllm_plugin import register

    register()
    llm = LLM(str(folder), **{**OPTIONS, **ON_CPU, **options})
    try:
        asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=-1, detokenize=False)
        found = llm.generate({"prompt_token_ids": tokens}, asked, use_tqdm=False)[0].prompt_logprobs
        rows = [[at[word].logprob for word in range(len(at))] for at in found[1:]]
        return torch.tensor(rows, dtype=torch.float64)
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def compared_log_probabilities(folder: Path, tokens: list[int], activations: str = "as-served") -> torch.Tensor:
    """The same by the forward of `halfbyte compare`, in FP32."""
    from halfbyte.calibrate.rows import Rows
    from halfbyte.compare.sides import open_side
    from halfbyte.compare.stream import _head, _Run

    count = np.array([tokens], np.int32)
    rows = Rows(
        tokens=count,
        real=np.ones_like(count, bool),
        positions=np.arange(len(tokens), dtype=np.int32)[None],
        documents=np.zeros_like(count),
        domains=np.zeros_like(count, np.int16),
        names=("one",),
        left_padded=False,
    )
    with open_side(folder, activations=activations) as side:
        run = _Run(rows, [side], None, 1)
        with run.layers:
            for index in range(side.model.config.num_hidden_layers):
                run._advance(side, run._hidden[0], index)
        logits = _head(side).logits(run._hidden[0][0], precise=True)
    return logits[:-1].double().log_softmax(-1)


def apart(first: torch.Tensor, second: torch.Tensor) -> tuple[float, float]:
    """The largest difference of a log-probability above 1e-9, and the mean KL of the second from the first."""
    likely = first > -20
    largest = (first - second).abs()[likely].max()
    kl = (first.exp() * (first - second)).sum(-1).mean()
    return float(largest), float(kl)


def quiet_environment() -> None:
    """Before vLLM is imported: this process is the engine, alone, offline, on few threads."""
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
