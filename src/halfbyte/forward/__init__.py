"""The forward of one decoder layer at a time, by transformers' own modules; the model is never whole in memory.

    config.text_model(config_json, attention="sdpa") -> TextModel(config, prefix, attention)
    sight.look_around(model, rows, chunk, dtype, device) -> Sight(cos, sin, mask)       of a chunk (slice) of rows
    layer.DecoderLayer(model, index, tensors, dtype=torch.bfloat16, device="cpu")       tensors by name, decoded
        .is_moe
        .attention_part(h [R,L,D], sight, look=None) -> h
        .mlp(h, look=None) -> h                                                         second half of a dense layer
        .before_experts(h) -> Routed(x [T,D], indices [T,k], weights [T,k], logits [T,E])
        .after_experts(h, x, routed [T,D], look=None) -> h                              h + (routed + shared(x))
    experts.run_experts(x, indices, weights, expert, threads=1, observe=None, change=None) -> [T,D]
    run.run_layer(layer, hidden [R,L,D], sights, chunks, expert, threads=1, ...)        all of it, `hidden` in place
    ends.embed(tokens, weight, dtype); ends.Head(model, tensors, dtype, device).logits(h, precise=False)
    threads.single_threaded(); threads.in_order(work, items, threads)

`look(name, tensor)` sees the input of every linear outside the routed experts by its name in the layer
("self_attn.o_proj", "mlp.shared_experts.down_proj"), the expanded keys and values ("self_attn.k", "self_attn.v") and
the latent that MLA caches ("self_attn.latent", "self_attn.k_rope"). What it returns, unless None, takes the place of
what it saw: so are quantized activations and a quantized KV cache emulated.
"""

from __future__ import annotations

import os

# Must be set before the first matrix product. With AMX or without it a machine then adds in the same order, so both
# give the same bits; and virtual machines that announce AMX, but trap its instructions, do not die of them.
INSTRUCTIONS = "ONEDNN_MAX_CPU_ISA"
os.environ.setdefault(INSTRUCTIONS, "AVX512_CORE_BF16")
# oneDNN keeps the code of the last 1024 shapes, and almost every expert has a number of tokens of its own: some 100 MB
# that come with the layers and are never used again.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
