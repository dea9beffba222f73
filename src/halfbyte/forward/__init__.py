"""Forward pass one decoder layer at a time; the whole model is never in memory.

    model.TextModel                                     a model without weights; each family implements it
        .decoder_layer(index, tensors, dtype, device)   -> DecoderLayer, from decoded tensors by name
    model.DecoderLayer
        .is_moe
        .attention_part(h [R,L,D], inputs, hook=None) -> h
        .mlp(h, hook=None) -> h                                                         second half of a dense layer
        .before_experts(h) -> Routed(x [T,D], indices [T,k], weights [T,k], logits [T,E])
        .after_experts(h, x, routed [T,D], hook=None) -> h                              h + (routed + shared(x))
    positions.attention_inputs(model, rows, chunk, dtype, device) -> AttentionInputs(cos, sin, mask) of some rows
    experts.run_experts(x, indices, weights, expert, threads=1, observe=None, change=None) -> [T,D]
    run.run_layer(layer, hidden [R,L,D], inputs_of, chunks, expert, threads=1, ...)     whole layer, `hidden` in place
    embedding_and_head.embed(tokens, weight, dtype)
    embedding_and_head.Head(model, tensors, dtype, device).logits(h, precise=False)
    ordered_threads.single_threaded(), ordered_threads.in_order(work, items, threads)

`families.registry.text_model(config_json)` returns the TextModel of a checkpoint, `families.weights.Weights` has its
decoded tensors and experts. This package knows no family and no tensor name.

`hook(name, tensor)` is called with the input of every linear outside the routed experts, by the checkpoint's
name of the linear in the layer. In the attention module it is also called with the expanded keys and values (`k`, `v`),
and with the cached tensors (MLA: `latent`, `k_rope`). A returned tensor replaces the input, which emulates quantized
activations and a quantized KV cache.
"""
