"""Run a plan on a Ray cluster: Ray schedules tasks, shared storage holds the data.

The driver owns the plan, lock, journal and finalization. A task writes one shard with the code of a local run, under a
temporary name, and returns its journal line. Weights never pass through Ray's object store.
"""
