"""Does a checkpoint still write? What it says, not what its numbers are.

loops.has_loop         a text -> whether it repeats itself without end
probe.degeneracy       a text, whole or as it comes -> its loops and other defects, each with its place
generate.open_writer   a checkpoint's folder -> a Writer: prompts in, texts out, seeded, a small model whole in memory
loop_rate.loop_rate    a folder -> how many open-ended texts loop, with their interval
loop_rate.judge        that, and the source's -> a verdict in a sentence
after_pruning          both for a checkpoint that was pruned just now, where that takes seconds
evaluate               a server, or two -> scores by lm-eval, recorded item by item, and a verdict
bench                  a server's speed under real load, and two servers compared
statistics             accuracies, paired comparisons, seeds, verdicts, ratios of speeds: what numbers say and what not
"""
