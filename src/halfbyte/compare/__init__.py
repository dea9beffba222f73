"""Compare a checkpoint with its source by running both on the same tokens, one layer at a time.

    tokens.rows_of         read `domain=path` files into rows of tokens
    tokens.answers         the tokens that belong to answers, for scoring only these
    models.Side            one model: config, decoded tensors, experts, and activation hooks
    models.open_side       open a checkpoint folder, optionally emulating quantized activations and KV cache
    models.open_planned_side   the same for the output of a recipe, encoded from the source and not written
    activations            emulated quantized activations; vLLM's plugin uses them too
    stream.compare_checkpoints   the `compare` command: two folders, some data -> report
    stream.compare         compare two sides on rows of tokens
    stream.compare_many    compare several sides with the first, which runs once
    measures               differences of hidden states and predictions
    report.Report          results by layer, in total, by domain and by document
    report.ratio           a mean over tokens with its confidence interval

From Python, to try weights that are not in any checkpoint:

    # device="cuda" runs the layers of both there
    with open_side(source) as first, open_side(out) as second:
        tried = dataclasses.replace(second, name="tried", experts=lambda layer: my_experts(layer))
        reports = compare_many(rows, first, [second, tried], threads=2)
        print(reports[1].total.kl, kl_ratio(reports[1], reports[0]))
"""
