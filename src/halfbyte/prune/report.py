"""What a plan does, for those who decide about it: rows and sentences, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfbyte.machine.advice import Advice
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import KEEP, ROUTED
from halfbyte.prune.budgets import WARNING
from halfbyte.prune.counts import count_advice
from halfbyte.prune.plan_file import CHOSEN_ON, PrunePlan
from halfbyte.prune.ranking import SUPER, SUPER_DROPPED, UNOBSERVED
from halfbyte.prune.restore import RESTORED

# A GLM-5.2 build whose worst domain was covered to 46 % degenerated on 3 of 5 open prompts, one with 81 % on none
# (glm-expert-pruning). The line between them is a guess in the middle.
LOW_COVERAGE = 0.6
_INT4, _NVFP4 = "int4", "kimi-k2.6-nvfp4-nvidia"  # the format that is read, a recipe that writes the other
LOW_MASS = 0.5  # below it, most of what experts added to the tokens of a domain is gone


def domain_rows(plan: PrunePlan) -> list[dict[str, Any]]:
    """Return a row for each domain, the worst covered first; those without tokens last."""
    found: dict[str, dict[str, Any] | None] = plan.coverage.get("domains", {})
    empty = {"mean": None, "worst": None, "worst_layer": None, "mass": None}
    rows = [{"domain": domain, **(of or empty)} for domain, of in found.items()]
    return sorted(rows, key=lambda row: (row["mean"] is None, row["mean"] or 0.0, row["domain"]))


def layer_rows(plan: PrunePlan) -> list[dict[str, Any]]:
    """Return a row for each layer: who stays and why, what goes, and which domain loses most."""
    by_layer: dict[str, dict[str, Any]] = plan.coverage.get("layers", {})
    rows: list[dict[str, Any]] = []
    for layer, choice in sorted(plan.layers.items()):
        found = by_layer.get(str(layer), {})
        worst = found.get("worst_domain")
        reasons = list(choice.reasons.values())
        rows.append(
            {
                "layer": layer,
                "kept": len(choice.kept),
                "dropped": found.get("dropped"),
                "worst_domain": worst,
                "worst": None if worst is None else found["covered"][worst],
                "bound": found.get("bound"),
                "super": reasons.count(SUPER),
                "unobserved": reasons.count(UNOBSERVED),
                "restored": reasons.count(RESTORED),
            }
        )
    return rows


def sentences(plan: PrunePlan, *, parallel: Sequence[int] = ()) -> list[Advice]:
    """Return what somebody should know before this is served, what warns first."""
    counts = sorted(set(plan.counts().values()))
    found = [*_about_domains(plan), *_about_layers(plan)]
    if len(counts) > 1:
        found.append(Advice("bad", WARNING, "keep as many in each layer"))
    else:
        found += count_advice(counts[0], plan.experts, parallel=parallel)
    if CHOSEN_ON in plan.source:
        what = "the plan was made on other weights: that is right only where these are the same model, stored anew"
        found.append(Advice("note", what))
    if plan.edited:
        unknown = "" if plan.coverage else ": what they cover is not known"
        fix = "" if plan.coverage else "give --stats to see it"
        found.append(Advice("note", f"the kept experts were edited by hand after the plan was made{unknown}", fix))
    return sorted(found, key=lambda advice: advice.level != "bad")


def stored_advice(made: Plan) -> tuple[Advice, ...]:
    """Say of INT4 experts that pruning leaves them so: recipes that prune have names in which NVFP4 occurs."""
    jobs = (job for job in made.jobs if job.role == ROUTED) if made.recipe.prune is not None else ()
    if not any(job.action == KEEP and linear.format == _INT4 for job in jobs for linear in job.linears):
        return ()
    fix = f"for NVFP4 in one pass: halfbyte quantize SRC OUT -r {_NVFP4} --set prune.method=reap"
    fix += f" --set prune.statistics=calibrate --set prune.keep={made.experts}"
    return (Advice("note", "the experts stay INT4, as they are stored", fix),)


def _about_domains(plan: PrunePlan) -> list[Advice]:
    found: list[Advice] = []
    for row in domain_rows(plan):
        if row["mean"] is None:
            found.append(Advice("note", f"{row['domain']} had no tokens: what it keeps is not known"))
            continue
        low = row["mean"] < LOW_COVERAGE
        text = (
            f"{row['domain']} keeps {row['mean']:.0%} of what experts chosen for it alone would "
            f"({row['worst']:.0%} in layer {row['worst_layer']})"
        )
        light = row["mass"] is not None and row["mass"] < LOW_MASS
        if row["mass"] is not None:
            text += f", and {row['mass']:.0%} of what its tokens were given"
        if low:
            fix = "keep more, calibrate on more of it, or choose with prune.select max_min"
            found.append(Advice("bad", text, fix))
        else:
            found.append(Advice("note", text, "keep more") if light else Advice("good", text))
    return found


def _about_layers(plan: PrunePlan) -> list[Advice]:
    rows = layer_rows(plan)
    found = _about_lost_super_experts(plan)
    dropped = {row["layer"]: row["dropped"] for row in rows if row["dropped"] is not None}
    if dropped:
        most = max(dropped, key=lambda layer: dropped[layer])
        mean = sum(dropped.values()) / len(dropped)
        found.append(Advice("note", f"{mean:.1%} of the scores go ({dropped[most]:.1%} in layer {most})"))
    told = {
        "super": ("super expert", "kept whatever the score", ""),
        "unobserved": ("expert", "kept, with too few tokens to be judged", "calibrate on more text"),
        "restored": ("expert", "restored", ""),
    }
    for key, (name, what, fix) in told.items():
        total, layers = sum(row[key] for row in rows), sum(row[key] > 0 for row in rows)
        if total:
            found.append(Advice("note", f"{_many(total, name)} in {_many(layers, 'layer')}: {what}", fix))
    return found


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
    what = f"dropped by hand: super expert {lost[0]}{more} (models that lose one repeat themselves)"
    return [Advice("bad", what, "keep it in the plan")]


def _many(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
