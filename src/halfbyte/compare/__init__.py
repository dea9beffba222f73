"""How far a checkpoint is from its source: both run on the same tokens, one layer at a time.

    sides.Side             one model: its config, decoded tensors, experts, and what is changed on the way
    sides.open_side        a checkpoint's folder -> Side, with what engines do to activations and KV cache, if asked
    stream.compare         rows, a Side, another Side -> Report
    stream.compare_many    the same with several others: the first one is run once
    staging.Layers         layers in the order in which they run; on a device, one is read ahead
    answers.answers        which tokens are answers, for those who score only these
    report.Report          numbers a layer, in all, by domain and by document
    intervals.ratio        sums by document -> a mean with its interval; of two reports, how their KLs compare
    tokens.rows_of         `domain=path` -> the rows that both sides read

In Python, to try weights that no checkpoint has:

    # device="cuda" runs the layers of both there
    with open_side(source) as first, open_side(out) as second:
        tried = dataclasses.replace(second, name="tried", experts=lambda layer: my_experts(layer))
        reports = compare_many(rows, first, [second, tried], threads=2)
        print(reports[1].total.kl, kl_ratio(reports[1], reports[0]))
"""
