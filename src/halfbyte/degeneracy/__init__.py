"""Detect degenerate model output: loops, broken characters, leaked special tokens, script drift. Pure functions.

find.find_defects      every defect of a text with its position, hard or soft
watch.LoopWatch        streaming loop detector: reports a loop as soon as it appears
watch.find_loop        the same detector for a complete text
units                  minimum size of a loop, by kind of repeated unit
cycle, counting, sameness, runs      the four loop rules, each a function of the end of a text
characters, markup, scripts          the other defects

With `cut=True` (the token limit ended the text), fewer copies at its end already count as a loop.

Error rates: python -m benchmarks.degeneracy.measure, and with --cut for texts cut by the token limit.
"""
