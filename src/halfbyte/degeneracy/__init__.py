"""Detect degenerate model output: loops, broken characters, leaked special tokens, script drift.

defects.find_defects   every defect of a text with its position, hard or soft
watch.LoopWatch        streaming loop detector: reports a loop as soon as it appears
watch.find_loop        the same detector for a complete text
rules                  the four loop rules, and the minimum size of a loop
loop_test              loop rate of a checkpoint and its source, and the verdict
generate               texts from a small checkpoint, without an engine

With `cut=True` (the token limit ended the text), fewer copies at its end already count as a loop.

Error rates: python -m benchmarks.degeneracy.measure, and with --cut for texts cut by the token limit.
"""
