"""Summarize a prune plan: rows for tables, and advice, also on which expert counts the serving engines support well.

From vLLM at commit a014e35f: the router GEMM for DeepSeek-V3 shapes exists for 256 and 384 experts only
(gate_linear.py), SGLang's `dsv3_router_gemm` and `kimi_k2_moe_fused_gate` likewise; FlashInfer's FP8 experts need a
multiple of 4 and at most 512 (trtllm_fp8_moe.py); expert parallelism needs a multiple of its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from halfbyte.plan.manifest import Plan
from halfbyte.plan.prune_plan import CHOSEN_ON, RESTORED, SUPER, SUPER_DROPPED, UNOBSERVED, PrunePlan
from halfbyte.plan.rules import KEEP, ROUTED
from halfbyte.prune.selection import WARNING
from halfbyte.ui.console import Advice

FAST_ROUTER = (256, 384)
LOADS_WELL = 32
FP8_MULTIPLE, FP8_MOST = 4, 512
PARALLEL = (2, 4, 8, 16, 32, 64)

# A GLM-5.2 build whose worst domain had 46% coverage degenerated on 3 of 5 open prompts, one with 81% on none
# (glm-expert-pruning). The threshold is a guess between the two.
LOW_COVERAGE = 0.6
_INT4, _NVFP4 = "int4", "kimi-k2.6-nvfp4-nvidia"  # the stored format, and a recipe that writes NVFP4
LOW_MASS = 0.5  # below it, most of the expert output on a domain's tokens is lost


@dataclass(frozen=True, slots=True)
class CountFacts:
    """Engine support for a number of experts per layer."""

    count: int
    fast_router: bool
    loads_well: bool
    flashinfer_fp8: bool
    parallel: tuple[int, ...]  # expert-parallel sizes that divide it

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "parallel": list(self.parallel)}


def count_facts(count: int) -> CountFacts:
    """Return the engine support for a count."""
    return CountFacts(
        count=count,
        fast_router=count in FAST_ROUTER,
        loads_well=count % LOADS_WELL == 0,
        flashinfer_fp8=count % FP8_MULTIPLE == 0 and count <= FP8_MOST,
        parallel=tuple(size for size in PARALLEL if count % size == 0),
    )


def count_advice(count: int, experts: int, *, parallel: Sequence[int] = ()) -> list[Advice]:
    """Return advice about keeping `count` of `experts`; `parallel` are the expert-parallel sizes to serve with."""
    facts = count_facts(count)
    advice: list[Advice] = []
    if facts.fast_router:
        advice.append(Advice("good", f"{count} experts keep the fast router kernels of vLLM and SGLang"))
    elif experts in FAST_ROUTER:
        larger = [fast for fast in FAST_ROUTER if count < fast < experts]
        instead = f"keep {larger[0]} to use them" if larger else ""
        what = f"{count} experts lose the fast router kernels of vLLM and SGLang, which exist for 256 and 384"
        advice.append(Advice("note", what, instead))
    if not facts.loads_well:
        near = " or ".join(str(near) for near in _around(count, LOADS_WELL) if 0 < near < experts)
        if near:  # a model with 32 experts has no alternative
            advice.append(Advice("note", f"{count} is not a multiple of 32, which engines prefer", f"keep {near}"))
    if not facts.flashinfer_fp8:
        advice.append(Advice("note", f"FlashInfer's FP8 MoE kernels need a multiple of 4 up to 512, not {count}"))
    for size in parallel:
        if count % size:
            near = " or ".join(str(near) for near in _around(count, size) if 0 < near < experts)
            what = f"{count} experts cannot be split over {size} devices by expert parallelism"
            advice.append(Advice("bad", what, f"keep {near}" if near else ""))
    return advice


def _around(count: int, step: int) -> tuple[int, int]:
    return count // step * step, (count // step + 1) * step


def domain_rows(plan: PrunePlan) -> list[dict[str, Any]]:
    """Return a row for each domain, worst coverage first, domains without tokens last."""
    by_domain: dict[str, dict[str, Any] | None] = plan.coverage.get("domains", {})
    empty = {"mean": None, "worst": None, "worst_layer": None, "mass": None}
    rows = [{"domain": domain, **(entry or empty)} for domain, entry in by_domain.items()]
    return sorted(rows, key=lambda row: (row["mean"] is None, row["mean"] or 0.0, row["domain"]))


def layer_rows(plan: PrunePlan) -> list[dict[str, Any]]:
    """Return a row for each layer: counts of kept experts by reason, the dropped share, and the worst domain."""
    by_layer: dict[str, dict[str, Any]] = plan.coverage.get("layers", {})
    rows: list[dict[str, Any]] = []
    for layer, choice in sorted(plan.layers.items()):
        entry = by_layer.get(str(layer), {})
        worst = entry.get("worst_domain")
        reasons = list(choice.reasons.values())
        rows.append(
            {
                "layer": layer,
                "kept": len(choice.kept),
                "dropped": entry.get("dropped"),
                "worst_domain": worst,
                "worst": None if worst is None else entry["covered"][worst],
                "bound": entry.get("bound"),
                "super": reasons.count(SUPER),
                "unobserved": reasons.count(UNOBSERVED),
                "restored": reasons.count(RESTORED),
            }
        )
    return rows


def sentences(plan: PrunePlan, *, parallel: Sequence[int] = ()) -> list[Advice]:
    """Return advice about serving the plan, warnings first."""
    counts = sorted(set(plan.counts().values()))
    advice = [*_about_domains(plan), *_about_layers(plan)]
    if len(counts) > 1:
        advice.append(Advice("bad", WARNING, "keep the same number in each layer"))
    else:
        advice += count_advice(counts[0], plan.experts, parallel=parallel)
    if CHOSEN_ON in plan.source:
        what = "the plan was chosen on other weights: valid only if these are the same model in another format"
        advice.append(Advice("note", what))
    if plan.edited:
        unknown = "" if plan.coverage else ": their coverage is unknown"
        fix = "" if plan.coverage else "pass --stats to compute it"
        advice.append(Advice("note", f"the kept experts were edited by hand{unknown}", fix))
    return sorted(advice, key=lambda item: item.level != "bad")


def stored_advice(run_plan: Plan) -> tuple[Advice, ...]:
    """Note that pruning leaves INT4 experts as they are, because pruning recipes have NVFP4 in their names."""
    jobs = (job for job in run_plan.jobs if job.role == ROUTED) if run_plan.recipe.prune is not None else ()
    if not any(job.action == KEEP and linear.format == _INT4 for job in jobs for linear in job.linears):
        return ()
    fix = f"for NVFP4 in one pass: halfbyte quantize SRC OUT -r {_NVFP4} --set prune.method=reap"
    fix += f" --set prune.statistics=calibrate --set prune.keep={run_plan.experts}"
    return (Advice("note", "the experts stay INT4, as stored in the source", fix),)


def _about_domains(plan: PrunePlan) -> list[Advice]:
    advice: list[Advice] = []
    for row in domain_rows(plan):
        if row["mean"] is None:
            advice.append(Advice("note", f"{row['domain']} had no tokens: its coverage is unknown"))
            continue
        low = row["mean"] < LOW_COVERAGE
        text = (
            f"{row['domain']} keeps {row['mean']:.0%} of the scores that experts chosen for it alone would keep "
            f"({row['worst']:.0%} in layer {row['worst_layer']})"
        )
        light = row["mass"] is not None and row["mass"] < LOW_MASS
        if row["mass"] is not None:
            text += f", and {row['mass']:.0%} of its expert output"
        if low:
            fix = "keep more, calibrate on more of it, or choose with prune.select max_min"
            advice.append(Advice("bad", text, fix))
        else:
            advice.append(Advice("note", text, "keep more") if light else Advice("good", text))
    return advice


def _about_layers(plan: PrunePlan) -> list[Advice]:
    rows = layer_rows(plan)
    advice = _about_lost_super_experts(plan)
    dropped = {row["layer"]: row["dropped"] for row in rows if row["dropped"] is not None}
    if dropped:
        most = max(dropped, key=lambda layer: dropped[layer])
        mean = sum(dropped.values()) / len(dropped)
        advice.append(Advice("note", f"{mean:.1%} of the scores are dropped ({dropped[most]:.1%} in layer {most})"))
    kinds = {
        "super": ("super expert", "kept regardless of score", ""),
        "unobserved": ("expert", "kept, with too few tokens to be scored", "calibrate on more text"),
        "restored": ("expert", "restored", ""),
    }
    for key, (name, what, fix) in kinds.items():
        total, layers = sum(row[key] for row in rows), sum(row[key] > 0 for row in rows)
        if total:
            advice.append(Advice("note", f"{_many(total, name)} in {_many(layers, 'layer')}: {what}", fix))
    return advice


def _about_lost_super_experts(plan: PrunePlan) -> list[Advice]:
    lost = [
        f"{expert} of layer {layer}"
        for layer, choice in sorted(plan.layers.items())
        for expert, reason in choice.reasons.items()
        if reason == SUPER_DROPPED
    ]
    if not lost:
        return []
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    what = f"super expert {lost[0]}{more} dropped by hand: models that lose one repeat themselves"
    return [Advice("bad", what, "keep it in the plan")]


def _many(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
