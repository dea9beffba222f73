"""A plan on many machines: Ray says who does what, shared storage holds everything that is large.

The driver owns plan, lock, journal and the end of a run. A task makes one shard with the code of a local run, under a
name of its own, and returns the line that the journal gets. No weight passes through Ray's object store.
"""
