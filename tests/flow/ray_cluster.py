"""A real Ray cluster of two nodes on this machine, in its own processes, and faults for its workers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
CPUS = 1  # of each node
# The cluster lives in a process of its own, so that neither its settings nor its threads are the tests'.
_SERVER = """
import sys
from ray.cluster_utils import Cluster
few = dict(num_cpus=int(sys.argv[1]), object_store_memory=80 << 20)
cluster = Cluster(initialize_head=True, head_node_args=dict(include_dashboard=False, **few))
second = cluster.add_node(**few)
print(cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "remove":
        cluster.remove_node(second, allow_graceful=False)
    else:
        second = cluster.add_node(**few)
    print("done", flush=True)
cluster.shutdown()
"""


class RayCluster:
    """Start a cluster; `faults` are those of its workers."""

    def __init__(self, **environment: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hb", dir="/tmp"))  # a socket's path has 107 characters at most
        self.faults = Faults(self.folder / "faults")
        path = os.pathsep.join([str(HERE / "ray_faults"), str(SOURCES), os.environ.get("PYTHONPATH", "")])
        self.environment = {
            **os.environ,
            "PYTHONPATH": path,
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "HALFBYTE_TEST_FAULTS": str(self.faults.folder),
            # A node that is lost is noticed within seconds, not half a minute.
            "RAY_health_check_initial_delay_ms": "0",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "4",
            **environment,
        }
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(CPUS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "cluster.log").open("w"),
            text=True,
            env=self.environment,
            start_new_session=True,
        )
        self.address = self._line(120)

    def remove_node(self) -> None:
        """Kill the second node."""
        self._tell("remove")

    def add_node(self) -> None:
        """Start a second node again."""
        self._tell("add")

    def _tell(self, what: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{what}\n")
        self._server.stdin.flush()
        assert self._line(60) == "done"

    def _line(self, seconds: float) -> str:
        """Read a line; fail if the cluster is silent for too long."""
        import select

        assert self._server.stdout is not None
        waiting = select.poll()
        waiting.register(self._server.stdout, select.POLLIN)
        ready = waiting.poll(seconds * 1_000)
        assert ready, (self.folder / "cluster.log").read_text()[-2000:]
        line = self._server.stdout.readline().strip()
        assert line, (self.folder / "cluster.log").read_text()[-2000:]
        return line

    def processes(self) -> list[int]:
        """Return the processes of this cluster, which have its folder in their environment."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    environment, state = (entry / "environ").read_bytes(), (entry / "stat").read_text()
                except OSError:
                    continue
                if f"RAY_TMPDIR={self.folder}".encode() in environment and state.rpartition(")")[2].split()[0] != "Z":
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        """Stop the cluster and all its remaining processes."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            self._server.wait(30)
        except subprocess.TimeoutExpired:
            self._server.kill()
        end = time.monotonic() + 5
        while self.processes() and time.monotonic() < end:
            time.sleep(0.1)
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


class Faults:
    """A folder that `ray_faults/sitecustomize.py` reads in every worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def slow(self, seconds: float) -> None:
        (self.folder / "slow").write_text(str(seconds))

    def add(self, kind: str, times: int = 1) -> None:
        for number in range(times):
            (self.folder / f"{kind}-{number}").touch()

    def left(self, kind: str) -> int:
        return len(list(self.folder.glob(f"{kind}-*")))

    def jobs(self) -> list[tuple[int, str]]:
        """Return process and name of every started job."""
        try:
            lines = (self.folder / "jobs").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(int(pid), name) for pid, _, name in (line.partition(" ") for line in lines)]

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()


def everything(folder: Path) -> dict[str, Any]:
    """Return every file of an output folder by its bytes, and its journal without order and times."""
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
    found.pop("halfbyte/hashed.json", None)  # sizes, times and inodes of these very files
    journal = [json.loads(line) for line in found.pop("halfbyte/journal.jsonl").splitlines() if line.strip()]
    for line in journal:
        line.pop("seconds")
        if line["sqnr_db"] is not None:  # threads add in the order in which they end
            line["sqnr_db"] = round(line["sqnr_db"], 9)
    found["journal"] = sorted(journal, key=lambda line: line["shard"])
    return found
