"""Run a plan on a Ray cluster: Ray schedules tasks, shared storage holds the data.

    driver.py       entry points: assign shards to tasks, check the written files, write the journal
    cluster.py      connection, nodes, and a pool that retries tasks
    worker.py       the task that writes a shard, and what every task receives and opens
    calibration.py  calibration: its tasks, and the sum of their statistics

The driver owns the plan, lock, journal and finalization. A task writes one shard with the code of a local run, under a
temporary name, and returns its journal line. Weights never pass through Ray's object store.
"""
