"""Evidence of any size for the report, in the form that the commands write; its texts may be hostile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from card_evidence import BENCH, COMPARE, LOOPS, PROBE, PROVENANCE, RELEASE, measured
from card_evidence import evaluation as card_evaluation
from pico import write_pico

from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.calibrate.store import Store
from halfbyte.engine.pipeline import quantize
from halfbyte.evidence.folder import KINDS
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.plan.pruned import RouterShape
from halfbyte.recipe.load import load_recipe

QUIET = "a calm text"


def write_output(folder: Path) -> Path:
    """Quantize a small checkpoint."""
    source = write_pico(folder / "source", experts=8)
    quantize(source, folder / "out", load_recipe("kimi-k2.6-nvfp4a16"))
    return folder / "out"


def add_evidence(out: Path, layers: int, experts: int, text: str = QUIET) -> None:
    """Write every kind of evidence; `text` is used in every field that may hold untrusted text."""
    plan = json.loads((out / "halfbyte/plan.json").read_text())
    plan["recipe"] |= {"name": text, "description": text}
    made = {
        "plan.json": plan, "compare.json": compare(layers, text), "probe/probe.json": probe(text),
        "eval/eval.json": evaluation(text), "bench/bench.json": bench(text), "release.json": release(text),
        "prune-plan.json": prune(layers, experts),
        "provenance.json": PROVENANCE
        | {"created": text, "plan": None, "source": PROVENANCE["source"] | {"name": None}, "data": {text: text}},
        "loops.json": LOOPS | {"loops": 1, "texts": 32, "flagged": False},
    }  # fmt: skip
    kinds = {place.file: kind for kind, place in KINDS.items()}
    for name, found in made.items():
        path = out / "halfbyte" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(measured(out, kinds[name], found)))
    asked = {"messages": [{"role": "user", "content": text}]}
    answer = {"content": text, "reasoning": text, "tool_calls": [], "finish_reason": "stop"}
    lines = [{"kind": "request", "id": f"t{n}", "probe": "json", "request": asked, "answer": answer} for n in range(58)]
    (out / "halfbyte/probe/probe.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    add_statistics(out, layers, experts)


def add_statistics(out: Path, layers: int, experts: int) -> None:
    random = np.random.default_rng(0)
    store = Store(out / "halfbyte/stats", {"domains": {"a": 1}}, layers + 1)
    store.begin()
    store.save(0, LayerStats({"mlp.down_proj": 1.0}))
    for layer in range(1, layers + 1):
        found = ExpertStats.empty(experts, 1)
        found.count[:] = random.integers(0, 5_000, (experts, 1))
        found.sums["gn"][:] = random.random((experts, 1)) * found.count
        store.save(layer, LayerStats({}, found))
    store.finish()


def add_losses(out: Path, layers: int, experts: int) -> None:
    """Write the losses of a model of this many layers; for a repeated shard, the last line counts."""
    journal = out / "halfbyte/journal.jsonl"
    last = json.loads(journal.read_text().splitlines()[-1])
    random = np.random.default_rng(2)
    last["layers"] = [
        {"layer": layer, "role": "routed_experts", "linears": 3 * experts, "weights": 3 * experts * 3072 * 3584,
         "signal": 1e6, "error": float(1e6 * 10 ** -(2 + random.random() / 10)),
         "worst": [f"language_model.model.layers.{layer}.mlp.experts.{experts - 1}.gate_proj", 18.0]}
        for layer in range(1, layers + 1)
    ]  # fmt: skip
    with journal.open("a") as file:
        file.write(json.dumps(last) + "\n")


def prune(layers: int, experts: int) -> dict:
    random = np.random.default_rng(1)
    keep = experts * 3 // 4
    layer_choices = {
        layer: LayerChoice(
            tuple(sorted(random.choice(experts, keep, replace=False).tolist())),
            tuple(random.random(experts).round(6).tolist()),
        )
        for layer in range(1, layers + 1)
    }
    return PrunePlan(router=RouterShape(experts, 2, 1, 1), layers=layer_choices, rule=None).as_dict()


def compare(layers: int, text: str) -> dict:
    total = {
        "documents": 20, "tokens": 4000, "kl": {"value": 0.05, "low": 0.04, "high": 0.07},
        "top1": {"value": 0.92, "low": 0.9, "high": 0.94}, "perplexity_first": 9.0, "perplexity_second": 9.1,
        "perplexity_ratio": {"value": 1.01, "low": 1.0, "high": 1.02},
    }  # fmt: skip
    by_layer = [
        {"layer": n, "relative_error": 0.01 + 0.002 * n, "cosine": 0.999, "routing_agreement": 0.9}
        for n in range(layers + 1)
    ]
    head = COMPARE | {"first": text, "second": "out", "rows": [8, 512]}
    positions = {"start": [0, 1, 2, 4, 8], "tokens": [8, 8, 16, 32, 64], "kl": [0.2, 0.15, 0.1, 0.07, 0.05]}
    return {**head, "total": total, "domains": {text: total}, "layers": by_layer, "by_position": positions}


def probe(text: str) -> dict:
    probes = [
        {"name": f"p{n}", "group": "card", "title": f"{n} {text}", "reason": text, "gate": True,
         "verdict": ("passed", "failed", "skipped")[n % 3], "measured": text, "threshold": "5 / 6", "numbers": {},
         "excerpts": [{"text": text, "problem": text, "start": 0, "end": 1, "trace": f"t{n}"}], "cause": text,
         "seconds": 1.0, "traces": [f"t{n}"]}
        for n in range(58)
    ]  # fmt: skip
    counts = {"passed": 20, "failed": 19, "broken": 0, "skipped": 19}
    head = PROBE | {"endpoint": PROBE["endpoint"] | {"model": text}}
    return {**head, "counts": counts, "probes": probes}


def evaluation(text: str) -> dict:
    whole = card_evaluation()

    def task(name: str, difference: float) -> dict:
        found = whole["tasks"][0]
        (score,), (pair,) = found["candidate"]["by_metric"].values(), found["comparisons"].values()
        mine = score | {"items": 400, "value": 0.8 + difference, "interval": [0.76, 0.84]}
        between = [difference - 0.02, difference + 0.02]
        verdict = pair["verdict"] | {"margin": 0.02}
        one = pair | {"reference": 0.8, "difference": difference, "interval": between, "verdict": verdict}
        return found | {"task": name, "label": "SCORED", "primary": "acc,none", "comparisons": {"acc,none": one},
                        "candidate": found["candidate"] | {"by_metric": {"acc,none": mine}}, "anomalies": [text],
                        "notes": []}  # fmt: skip

    tasks = [task(f"gsm8k {text}", -0.01), task("mmlu", 0.003), task("copying", -0.04)]
    arguments = whole["arguments"] | {"limit": 400}
    return whole | {"suite": whole["suite"] | {"name": "mini"}, "arguments": arguments, "label": "REGRESSION",
                    "tasks": tasks}  # fmt: skip


def bench(text: str) -> dict:
    (point,) = BENCH["points"]
    points = [
        point | {"arm": arm, "point": point["point"] | {"concurrency": users},
                 "label": f"concurrency {users}, 128 in / 64 out", "requests": 24,
                 "tokens_per_second": speed * users**0.8, "tokens_per_second_per_user": speed / users**0.2,
                 "ttft": {"p50": 0.05, "p99": 0.2}, "tpot": {"p50": 0.01}}
        for arm, speed in (("A", 80.0), ("B", 60.0)) for users in (1, 2, 4, 8, 16)
    ]  # fmt: skip
    ratio = {"design": "abba", "ratio": 1.3, "interval": None, "bootstrap": None, "units": [6, 6], "drift": None,
             "drift_p": None, "no_claim_because": text, "confidence": 0.95, "drift_significant": False,
             "headline": None}  # fmt: skip
    compared = {"point": text, "measure": text, "individual": ratio, "simultaneous": ratio, "sentence": text}
    return BENCH | {"no_claim_because": text, "points": points, "headlines": [text], "comparisons": [compared]}


def release(text: str) -> dict:
    gate = {"name": "audit", "required": "passed", "measured": "passed", "outcome": "passed", "why": text}
    gates = [gate, {**gate, "outcome": "failed"}]
    return RELEASE | {"plan": None, "verdict": "REGRESSION", "why": [text], "next": [text], "gates": gates}
