"""Text that no sound model writes: loops, broken characters, leaked markup, another script. Pure functions.

find.find_defects      a text -> every defect with its place, hard or soft
watch.LoopWatch        pieces of a text as they come -> a loop as soon as there is one
watch.find_loop        the same for a text that is whole
units                  how long a thing of what kind must be repeated to be a loop
cycle, counting, sameness, runs      the four kinds of loops, each a function of the end of a text
characters, markup, scripts          the other defects

How often they are wrong: benchmarks/bench_degeneracy.py.
"""
