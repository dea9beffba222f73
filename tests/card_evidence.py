"""Small evidence files in the form that the commands write, and folders with them, for tests of the card."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pico import write_pico

from halfbyte.evidence.folder import KINDS
from halfbyte.evidence.measured_files import MEASURED, content

SOURCE_README = """---
license: other
license_name: modified-mit
license_link: LICENSE
library_name: transformers
pipeline_tag: image-text-to-text
language: [en, zh]
tags: [compressed-tensors, int4]
---

# Kimi-Pico
"""
IGNORE = ["lm_head", "*self_attn*", "*vision_tower*", "*mm_projector*"]
SHA = {letter: letter * 64 for letter in "abcdef"}

PLAN: dict[str, Any] = {
    "fingerprint": "c329ccd8791be902",
    "parts": {"bytes_version": "1", "recipe": SHA["a"], "source config": "2d4f2364acb4fa3f",
              "source tensors": "3c624c7de4b57d61", "layers": "all", "shards": "ba73beaabd55b61c"},
    "recipe": {
        "name": "kimi-k2.6-nvfp4-wafer",
        "description": "All experts and the dense layer in NVFP4 by ModelOpt's max rule.",
        "roles": {"routed_experts": "quantize", "shared_experts": "quantize", "dense_mlp": "quantize",
                  "attention": "keep", "router": "keep"},
        "quantize": {"format": "nvfp4", "scales": "max", "activations": "calibrated",
                     "input_scale": {"per": "expert", "min_tokens": 1, "backstop": "modelopt"}, "kv_cache": "fp8"},
        "calibrate": {"samples": 16, "sequence_length": 64, "rows": "padded", "propagate": "unquantized",
                      "datasets": [{"domain": "news", "source": "/home/someone/articles.jsonl", "split": "train"}]},
        "prune": None,
    },
    "read_nbytes": 4096, "write_nbytes": 1024, "shards": {},
    "source": {"model-00001-of-000002.safetensors": "1fb6a8f20e84c584", "model-00002-of-000002.safetensors": "8cc5"},
    "calibration": {"tokens_sha256": SHA["b"], "rows": [16, 64], "domains": {"news": 922}, "dtype": "bfloat16"},
    "statistics_sha256": SHA["c"],
}  # fmt: skip

COVERAGE: dict[str, Any] = {
    "moe_layers": 2, "fewest_tokens": 47, "median_tokens": 116.5, "unseen_experts": 1, "backstopped_experts": 1,
    "layers": [{"layer": 1, "fewest": 47, "median": 125.0, "unseen": [], "backstopped": []},
               {"layer": 2, "fewest": 0, "median": 107.5, "unseen": [3], "backstopped": [3]}],
}  # fmt: skip

AUDIT: dict[str, Any] = {
    "date": "2026-11-16T00:38:08+00:00", "versions": {"halfbyte": "0.1.0", "numpy": "2.3.5", "python": "3.11.7"},
    "plan": "c329ccd8791be902", "against": "kimi-pico", "seconds": 0.6, "passed": True,
    "findings": [{"check": "structure", "level": "good", "text": "2,094 tensors: as planned; nothing extra"},
                 {"check": "kept", "level": "note", "text": "102 tensors and 6 other files identical to the source"}],
}  # fmt: skip

COMPARE: dict[str, Any] = {
    "first": "/srv/models/kimi-pico", "second": "/srv/out/Pico-NVFP4", "emulated": {}, "dtype": "float32",
    "device": "cpu", "rows": [16, 256], "tokens_sha256": SHA["d"], "seconds": 8.5, "scored": "all",
    "total": {"documents": 18, "tokens": 4063, "kl": {"value": 0.09746986, "low": 0.06876931, "high": 0.18770936},
              "top1": {"value": 0.85577159, "low": 0.7901788, "high": 0.89356228},
              "perplexity_first": 22.045982, "perplexity_second": 23.095612,
              "perplexity_ratio": {"value": 1.04761096, "low": 1.0232392, "high": 1.07622842}},
    "domains": {"news": {"documents": 7, "tokens": 2001, "kl": {"value": 0.0513, "low": 0.0411, "high": 0.0622},
                         "top1": {"value": 0.913, "low": 0.88, "high": 0.94}, "perplexity_first": 8.125,
                         "perplexity_second": 8.375, "perplexity_ratio": {"value": 1.0308, "low": None, "high": None}}},
    "layers": [{"layer": 0, "relative_error": 0.0318, "cosine": 0.9995, "routing_agreement": None},
               {"layer": 2, "relative_error": 0.1452, "cosine": 0.9878, "routing_agreement": 0.9153}],
}  # fmt: skip


def _score(value: float, error: float, items: int) -> dict[str, Any]:
    interval = [value - 2 * error, value + 2 * error]
    return {"items": items, "value": value, "standard_error": error, "wilson": interval, "clusters": None,
            "clustered_error": None, "clustered": None, "macro": None, "macro_error": None, "interval": interval,
            "confidence": 0.95}  # fmt: skip


def _paired(ours: float, theirs: float, interval: list[float], flips: tuple[int, int], p: float) -> dict[str, Any]:
    return {"items": 1319, "candidate": ours, "reference": theirs, "difference": ours - theirs, "better": flips[0],
            "worse": flips[1], "interval": interval, "p_value": p, "method": "exact McNemar, Tango", "mcnemar_p": p,
            "mcnemar_mid_p": None, "tango": interval, "bootstrap": interval, "bootstrap_seed": 0, "clusters": None,
            "unpaired_z": -0.37, "unpaired_p": None, "flips": sum(flips) / 1319, "confidence": 0.95,
            "verdict": {"label": "ACCEPT", "difference": ours - theirs, "lower": interval[0], "upper": interval[1],
                        "p_worse": 0.5, "margin": 0.01, "significant_loss": False, "beyond_margin": False,
                        "items": 1319, "items_if_no_loss": None, "items_if_as_observed": None, "alpha": 0.05,
                        "power": 0.8, "items_to_decide": None}}  # fmt: skip


def _side(samples: int, by_metric: dict[str, Any], truncated: int = 0, empty: int = 0) -> dict[str, Any]:
    return {"samples": samples, "errors": 0, "truncated": truncated, "empty": empty, "by_metric": by_metric,
            "by_seed": {}}  # fmt: skip


def evaluation(label: str = "ACCEPT") -> dict[str, Any]:
    """Return an eval.json with a comparison, one over seeds, and one task without a reference."""
    seeds = {
        "candidate": {"by_seed": [0.9295, 0.9361, 0.9409], "mean": 0.9355, "stdev": 0.0057,
                      "population_stdev": 0.0057},
        "reference": {"by_seed": [0.9345, 0.9401, 0.9442], "mean": 0.9396, "stdev": 0.0049,
                      "population_stdev": 0.0049},
        "z_sample": -0.94, "z_population": None, "z_p": None, "welch_p": 0.4,
        "paired": _paired(0.9355, 0.9396, [-0.0121, 0.0039], (23, 29), 0.488),
    }  # fmt: skip
    gsm8k = {
        "task": "gsm8k_cot", "prompt_format": "completions, no template", "shots": 8, "label": label,
        "primary": "exact_match,strict-match",
        "candidate": _side(1319, {"exact_match,strict-match": _score(0.9136, 0.0077, 1319)}, 2, 1),
        "reference": _side(1319, {"exact_match,strict-match": _score(0.9151, 0.0077, 1319)}),
        "comparisons": {"exact_match,strict-match": _paired(0.9136, 0.9151, [-0.0112, 0.0082], (31, 33), 0.9007)},
        "anomalies": [], "notes": ["3 programs reached a limit"], "worst_case_difference": None,
    }  # fmt: skip
    by_seeds = {
        "task": "gsm8k", "prompt_format": "chat, with the server's template", "shots": None, "label": "INCONCLUSIVE",
        "primary": "exact_match,none",
        "candidate": _side(3957, {"exact_match,none": _score(0.9355, 0.0068, 1319)}),
        "reference": _side(3957, {"exact_match,none": _score(0.9396, 0.0066, 1319)}),
        "comparisons": {"exact_match,none": seeds}, "anomalies": [], "notes": [], "worst_case_difference": None,
    }  # fmt: skip
    alone = {
        "task": "mmlu", "prompt_format": "completions, no template", "shots": 0, "label": "SCORED",
        "primary": "acc,none", "candidate": _side(57, {"acc,none": _score(0.25, 0.05, 57) | {"standard_error": None}}),
        "reference": None, "comparisons": {}, "anomalies": [], "notes": [], "worst_case_difference": None,
    }  # fmt: skip
    return {
        "format": 1, "halfbyte": "0.1.0", "lm_eval": "0.4.13",
        "suite": {"name": "kimi-card", "hash": SHA["e"], "data": {}, "task_files": {}, "notes": []},
        "arguments": {"url": "http://127.0.0.1:8000", "against": None, "limit": None, "margin": 0.01,
                      "baseline": "/srv/out/halfbyte/eval-source", "suite": "kimi-card", "folder": "eval",
                      "data_dir": None, "model": None, "concurrency": None, "timeout_s": 60.0, "same_server": False},
        "sandbox": None, "baseline": None, "requests_sent": 5333, "concurrency": 4,
        "seeds": {"fewshot": [{"python": 0, "fewshot": 1234}], "requests": 1234},
        "candidate": {"url": "http://127.0.0.1:8000", "model": "pico", "max_context": 4096,
                      "reported": {"root": "/srv/out/Pico-NVFP4", "owned_by": "vllm", "version": "0.32.0"},
                      "prompt_tokens": {}, "fingerprint_replies": [], "checks": [], "fingerprint": None},
        "reference": None, "differences": [], "same_checkpoint_warning": "", "started": "2026-11-16T01:00:00+00:00",
        "seconds": 36.3, "label": "REGRESSION" if label == "REGRESSION" else "INCONCLUSIVE",
        "tasks": [gsm8k, by_seeds, alone],
    }  # fmt: skip


def _probe(name: str, title: str, verdict: str, measured: str, threshold: str, shown: Any = ()) -> dict[str, Any]:
    return {"name": name, "group": "card", "title": title, "reason": "a reason", "gate": True, "verdict": verdict,
            "measured": measured, "threshold": threshold, "numbers": {}, "excerpts": list(shown), "cause": None,
            "seconds": 1.0, "traces": []}  # fmt: skip


PROBE: dict[str, Any] = {
    "format": 1, "halfbyte": "0.1.0", "profile": "mini", "seed": 7, "context": 4096, "reference": None,
    "endpoint": {"url": "http://127.0.0.1:8000", "model": "pico", "max_context": 4096,
                 "reported": {"owned_by": "vllm", "version": "0.32.0"}},
    "sandbox": "isolated by bubblewrap 0.11.0 around /usr/bin/python3.11 as user 65534",
    "started": "2026-11-15T23:34:48+00:00", "seconds": 375.5, "accepted": False,
    "counts": {"passed": 2, "failed": 1, "broken": 0, "skipped": 2}, "budget_s": 375.0,
    "probes": [
        _probe("json", "ASCII JSON", "passed", "6 / 6 right", "5 / 6"),
        _probe("vision", "vision smoke", "skipped", "the profile mini has no such questions", ""),
        _probe("math", "math", "failed", "3 / 8 right", "7 / 8",
               [{"text": "First the bowls: 997+1027=2024.\n#### 2024", "problem": "2024 where 36432 is right"}]),
        _probe("context-near", "near-limit context", "passed", "3 / 3 right at 259,943 tokens of 262,144", "2 / 3"),
        _probe("prose-loops-long", "long prose", "skipped", "does not fit the budget: needs about 4 min, 9 s are left",
               ""),
    ],
}  # fmt: skip

BENCH: dict[str, Any] = {
    "servers": {"A": {"url": "http://127.0.0.1:9201", "model": "pico", "root": "/srv/out/Pico-NVFP4", "context": 4096,
                      "version": "0.32.0", "device": "gpu", "emulated": True, "local": True, "kv_tokens": None,
                      "started": None, "settings": {}, "no_claim_because": "the server emulates its number format",
                      "boot": {"url": "http://127.0.0.1:9201", "seconds": 131.0, "cached": None, "kind": "unknown"}}},
    "differences": [], "same_server": False, "slo": {}, "comparisons": [], "not_compared": [], "equal_tpot": [],
    "roofline": [], "roofline_missing": "", "design": "abba",
    "no_claim_because": "the server emulates its number format",
    "points": [{"arm": "A", "label": "concurrency 8, 128 in / 64 out", "requests": 64, "failed": 0, "blocks": 6,
                "point": {"prompt": 128, "output": 64, "concurrency": 8, "content": "random", "chat": False},
                "errors": {}, "requests_per_second": None, "steady_tokens_per_second": None, "itl": None, "e2e": None,
                "goodput_per_second": None, "goodput_share": None, "drift": None, "client_cpu_share": 0.1, "doubt": "",
                "error_rate": 0.0,
                "tokens_per_second": 452.7958, "tokens_per_second_per_user": 59.8166,
                "prefill_tokens_per_second": 2562.957, "ttft": {"p50": 0.04994, "p99": 0.05247},
                "tpot": {"p50": 0.016736, "p99": 0.017431}, "gpus": None,
                "server": {"prefix_queries": None, "prefix_hits": None, "draft_tokens": None, "accepted_tokens": None,
                           "preemptions": None, "generated_tokens": None, "prefix_hit_share": 0.741,
                           "draft_acceptance": None, "kv_use_peak": None},
                "no_claim_because": ""}],
    "headlines": ["A gives at least 14.4 % more output tokens a second"],
}  # fmt: skip

SERVE: dict[str, Any] = {
    "written_by": "written by `halfbyte serve`",
    "launches": [{
        "engine": "vllm", "version": "0.32.0", "model": "/srv/out/Pico-NVFP4", "served_name": "Pico-NVFP4",
        "gpus": "8xH200", "image": "vllm/vllm-openai:v0.32.0", "port": 8000,
        "command": ["vllm", "serve", "/srv/out/Pico-NVFP4", "--max-model-len", "32768", "--moe-backend", "marlin"],
        "docker": ["docker", "run", "--rm", "-v", "/srv/out/Pico-NVFP4:/model:ro", "vllm/vllm-openai:v0.32.0", "/model",
                   "--max-model-len", "32768"],
        "environment": {"VLLM_USE_V2": "1"},
        "settings": [{"setting": "max_model_len", "flag": "--max-model-len", "value": 32768, "reason": "as asked for",
                      "source": "the user"},
                     {"setting": "compile", "flag": "--compilation-config", "value": {"a": True}, "reason": "speed",
                      "source": "vLLM"}],
        "warnings": [{"warning": "Hopper has no NVFP4 arithmetic, but the checkpoint works", "source": "vLLM"}],
        "fit": {"gpus": "8xH200", "fits": True, "problem": None, "gpu_weights_nbytes": 590_000_000_000,
                "kv_tokens": 498_880, "context": 32768, "advice": "", "tensor_parallel": 8, "expert_parallel": True,
                "decode_context_parallel": 1, "gpu_memory_nbytes": 141_000_000_000, "gpu_memory_utilization": 0.9,
                "gpu_reserve_nbytes": 0, "gpu_reserve_outside": False, "gpu_kv_nbytes": 0, "kv_dtype": "fp8",
                "kv_token_nbytes": 1, "kv_tokens_fp8": None, "kv_tokens_bf16": None, "concurrency": 1,
                "full_contexts": None, "full_contexts_fp8": None, "weights": {}, "reserve": {}, "arithmetic": []},
    }],
}  # fmt: skip

RELEASE: dict[str, Any] = {
    "format": 1, "halfbyte": "0.1.0", "plan": "c329ccd8791be902", "recipe": "kimi-k2.6-nvfp4-wafer",
    "forced": False, "headline": "ACCEPT", "verdict": "ACCEPT", "why": ["Every gate passed."],
    "next": ["halfbyte publish OUT REPO"],
    "gates": [{"name": "eval", "required": "no REGRESSION", "measured": "ACCEPT", "outcome": "passed", "why": ""}],
    "stages": [{"name": "quantize", "command": ["halfbyte", "quantize", "/srv/models/kimi-pico", "{out}", "-r",
                                                 "kimi-k2.6-nvfp4-wafer"], "key": "k", "state": "done",
                "started": "2026-11-16T00:00:00+00:00"}],
}  # fmt: skip

PROVENANCE: dict[str, Any] = {
    "format": 1, "halfbyte": "0.1.0", "created": "2026-11-16T02:00:00+00:00",
    "code": {"version": "0.1.0", "commit": "f77e10c"},
    "source": {"name": "moonshotai/Kimi-Pico", "revision": "7eb5002", "shards": {}, "identity": {}, "hashes": {}},
    "recipe": {"name": "kimi-k2.6-nvfp4-wafer", "sha256": SHA["a"]}, "plan": "c329ccd8791be902", "statistics": None,
    "data": None, "evidence": {}, "hashes": {}, "digest": SHA["d"],
    "environment": {"python": "3.11.7", "packages": {"numpy": "2.3.5", "torch": "2.13.0"}, "cpu": "x86_64",
                    "gpu": ["NVIDIA H200"], "os": "Linux"},
}  # fmt: skip

PRUNE: dict[str, Any] = {
    "kind": "halfbyte prune plan", "version": 1, "router": {"experts": 8, "top_k": 2},
    "rule": {"method": "reap", "select": "mean", "keep": 4}, "edited": False, "kept_sha256": SHA["f"],
    "statistics": {"tokens_sha256": SHA["b"], "domains": {"stories": 16131, "tools": 25431}},
    "coverage": {"domains": {"stories": {"mean": 0.4826, "worst": 0.3148, "worst_layer": 2, "mass": 0.1324},
                             "tools": {"mean": 0.6321, "worst": 0.2352, "worst_layer": 2, "mass": 0.205}}},
    "layers": {"1": {"kept": [0, 1, 2, 3], "reasons": {"2": "super expert"}},
               "2": {"kept": [4, 5, 6, 7], "reasons": {}}},
}  # fmt: skip

LOOPS: dict[str, Any] = {
    "temperatures": [0.0, 0.7], "tokens": 256, "texts": 32, "loops": 5, "short": 24, "unfinished": 2, "share": 0.15625,
    "low": 0.0686, "high": 0.3175, "by_temperature": {"0.0": 5}, "examples": ["saliva saliva saliva saliva"],
    "source": {"texts": 32, "loops": 0, "short": 0, "unfinished": 1, "share": 0.0, "low": 0.0, "high": 0.1072,
               "by_temperature": {"0.0": 0}, "examples": []},
    "p": 0.0312, "flagged": True, "level": "bad",
}  # fmt: skip


def everything() -> dict[str, dict[str, Any]]:
    """Return all evidence of an unpruned checkpoint."""
    return copy.deepcopy({"plan": PLAN, "coverage": COVERAGE, "audit": AUDIT, "compare": COMPARE, "serve": SERVE,
                          "probe": PROBE, "eval": evaluation(), "bench": BENCH, "release": RELEASE,
                          "provenance": PROVENANCE})  # fmt: skip


def pruned() -> dict[str, dict[str, Any]]:
    """Return the evidence of a pruned checkpoint that loops, with little other evidence."""
    return copy.deepcopy({"plan": PLAN, "prune": PRUNE, "loops": LOOPS})


def regression() -> dict[str, dict[str, Any]]:
    """Return the evidence of a release that failed its gates."""
    found = everything()
    found["eval"] = evaluation("REGRESSION")
    found["eval"]["tasks"][2] |= {"label": "ANOMALOUS", "anomalies": ["candidate: 25% is not above chance, 25%"]}
    found["release"] |= {"verdict": "REGRESSION", "why": ["gsm8k_cot is worse by more than 1 pp."],
                         "next": ["halfbyte quantize SRC OUT -r RECIPE, with another recipe"]}  # fmt: skip
    return found


def write_out(folder: Path, evidence: Mapping[str, Any], *, kind: str = "nvfp4", readme: str = SOURCE_README) -> Path:
    """Write a small checkpoint like `halfbyte quantize`, with evidence."""
    out = write_pico(folder, kind)
    config = json.loads((out / "config.json").read_text())
    if kind == "nvfp4":
        config["quantization_config"] |= {"ignore": IGNORE, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    (out / "config.json").write_text(json.dumps(config))
    (out / "README.md").write_text(readme)
    (out / "halfbyte").mkdir()
    (out / "halfbyte/source-README.md").write_text(readme)
    put(out, evidence)
    return out


def measured(out: Path, kind: str, held: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result that lists the files of this folder as measured, unless it lists some already."""
    if KINDS[kind].measured == "nothing":
        return dict(held)
    if KINDS[kind].measured == "outputs":
        outputs = {name: {"nbytes": (out / name).stat().st_size, "sha256": sha} for name, sha in content(out).items()}
        return {"outputs": outputs, **held}
    return {MEASURED: content(out), **held}


def put(out: Path, evidence: Mapping[str, Any]) -> None:
    """Write evidence to the paths that the commands use."""
    for name, held in evidence.items():
        path = out / "halfbyte" / KINDS[name].file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measured(out, name, held)).replace("{out}", str(out)))
    if "bench" in evidence:
        (out / "halfbyte/bench/bench.svg").write_text("<svg/>")
