"""What a planned checkpoint will ask of GPUs, from its sizes and its config."""

from __future__ import annotations

from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import Job
from halfbyte.serve.fit import Needs, kv_values

# vLLM, SGLang and ATOM hold these whole on each GPU; the vision tower with --mm-encoder-tp-mode data, as Kimi's guides
# recommend. MLA's down-projections feed a latent that all heads share.
_WHOLE_ROLES = ("router", "norm", "vision", "projector", "other_buffers")
_WHOLE_LINEARS = ("q_a_proj", "kv_a_proj_with_mqa")


def needs(plan: Plan) -> Needs:
    """Return what the output of a plan needs."""
    architecture, config = plan.model.architecture, plan.checkpoint.config
    text = architecture.text(config)
    layers = architecture.number(config, "layers") or plan.model.layers
    values, kv_heads = kv_values(text, min(layers, plan.layers or layers))
    context, heads = text.get("max_position_embeddings"), text.get("num_attention_heads")
    return Needs(
        weights_nbytes=sum(job.write_nbytes for job in plan.jobs),
        replicated_nbytes=sum(job.write_nbytes for job in plan.jobs if _whole(job)),
        kv_values=values,
        kv_heads=kv_heads,
        context=context if type(context) is int else None,
        heads=heads if type(heads) is int else None,
    )


def _whole(job: Job) -> bool:
    return job.role in _WHOLE_ROLES or any(linear.module.rpartition(".")[2] in _WHOLE_LINEARS for linear in job.linears)
