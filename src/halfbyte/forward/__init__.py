"""Forward pass one decoder layer at a time with transformers' modules; the whole model is never in memory.

    config.text_model(config_json, attention="sdpa") -> TextModel(config, prefix, attention)
    positions.look_around(model, rows, chunk, dtype, device) -> Sight(cos, sin, mask)   for a chunk (slice) of rows
    layer.DecoderLayer(model, index, tensors, dtype=torch.bfloat16, device="cpu")       tensors by name, decoded
        .is_moe
        .attention_part(h [R,L,D], sight, look=None) -> h
        .mlp(h, look=None) -> h                                                         second half of a dense layer
        .before_experts(h) -> Routed(x [T,D], indices [T,k], weights [T,k], logits [T,E])
        .after_experts(h, x, routed [T,D], look=None) -> h                              h + (routed + shared(x))
    experts.run_experts(x, indices, weights, expert, threads=1, observe=None, change=None) -> [T,D]
    run.run_layer(layer, hidden [R,L,D], sights, chunks, expert, threads=1, ...)        whole layer, `hidden` in place
    embedding_and_head.embed(tokens, weight, dtype)
    embedding_and_head.Head(model, tensors, dtype, device).logits(h, precise=False)
    ordered_threads.single_threaded(), ordered_threads.in_order(work, items, threads)

The hook `look(name, tensor)` is called with the input of every linear outside the routed experts, by its name in the
layer ("self_attn.o_proj", "mlp.shared_experts.down_proj"), with the expanded keys and values ("self_attn.k",
"self_attn.v") and with the latent that MLA caches ("self_attn.latent", "self_attn.k_rope"). A returned tensor replaces
the input, which emulates quantized activations and a quantized KV cache.
"""
