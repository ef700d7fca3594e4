"""Several local processes train one stack together, over gloo on the loopback interface.

Each of them is `python -m experiments.sharding.processes` with a rank.
"""

import argparse
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from experiments.sharding.stack import Size, mesh_of, parallel_step, sharded

ROOT = Path(__file__).parents[2]
# Relative: the same program on the same shards, but sums over processes may have another order.
TOLERANCE = 1e-6
DEVICES = 8
HEARTBEAT = 5  # seconds without a heartbeat after which a process counts as dead
CONNECT = 60  # seconds to connect
GRACE = 6.0 * HEARTBEAT  # seconds for the others to end once one has failed
POLL = 0.05
TAIL = 1500  # characters of what a failed process has printed


class Failed(RuntimeError):
    """A process ended with an error, or none of them ended in time."""


@dataclasses.dataclass(frozen=True)
class Team:
    """The processes, and the folder of their output and the losses."""

    processes: Sequence[subprocess.Popen[bytes]]
    folder: Path

    @property
    def losses(self) -> list[float]:
        """The losses so far."""
        path = self.folder / "losses"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def codes(self) -> list[int | None]:
        """Exit codes; None for processes that run."""
        return [process.poll() for process in self.processes]

    def wait(self, seconds: float) -> list[int | None]:
        """Exit codes once all have ended, after ``seconds``, or ``GRACE`` after the first error."""
        end, failed = time.monotonic() + seconds, False
        while None in self.codes() and time.monotonic() < end:
            if not failed and any(self.codes()):
                end, failed = min(end, time.monotonic() + GRACE), True
            time.sleep(POLL)
        return self.codes()

    def printed(self, rank: int) -> str:
        """The end of the output of a process."""
        return (self.folder / f"{rank}.log").read_text(errors="replace")[-TAIL:]


@contextmanager
def team(number: int, size: Size, steps: int, method: str = "newton") -> Iterator[Team]:
    """Start the processes; at the end, however it comes, all are killed."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), _free_port()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            given = dataclasses.asdict(size) | {"number": number, "port": port, "steps": steps}
            given |= {"losses": folder / "losses", "method": method}
            for rank in range(number):
                command = [sys.executable, "-m", "experiments.sharding.processes"]
                for key, value in (given | {"rank": rank}).items():
                    command += [f"--{key}", str(value)]
                around: Any = {"cwd": ROOT, "env": os.environ | {"JAX_PLATFORMS": "cpu"}}
                with (folder / f"{rank}.log").open("wb") as log:
                    one = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **around)
                    processes.append(one)
            yield Team(processes, folder)
        finally:
            for process in processes:
                process.kill()  # SIGKILL: under jax.distributed they ignore SIGTERM
            for process in processes:
                process.wait()


def run(number: int, size: Size, steps: int, seconds: float, method: str = "newton") -> list[float]:
    """The losses of a training run in ``number`` processes.

    Raises:
        Failed: a process failed, or it took too long.
    """
    with team(number, size, steps, method) as running:
        codes = running.wait(seconds)
        for rank, code in enumerate(codes):
            if code:
                printed = running.printed(rank)
                raise Failed(
                    f"process {rank} of {number} ended with {code}; all: {codes}\n{printed}"
                )
        if running_on := codes.count(None):
            raise Failed(f"{running_on} of {number} processes have not ended after {seconds:.0f} s")
        return running.losses


def _free_port() -> int:
    """A free port; another process may take it before ours starts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- in each process


def join(number: int, rank: int, port: int) -> None:
    """Join the processes; together they have 8 simulated devices."""
    jax.config.update("jax_num_cpu_devices", DEVICES // number)
    if number == 1:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        number,
        rank,
        initialization_timeout=CONNECT,
        heartbeat_timeout_seconds=HEARTBEAT,
        shutdown_timeout_seconds=4 * HEARTBEAT,
    )


def train(size: Size, steps: int, losses: Path, method: str) -> None:
    """Train; the first process writes the losses, a line a step."""
    mesh = mesh_of((DEVICES,), ("chain",))
    chain, batch = sharded(size, mesh)
    step = parallel_step(chain, mesh, method)
    weights: Any = chain.inputs
    for _ in range(steps):
        loss, weights = jax.block_until_ready(step(weights, batch))
        if jax.process_index() == 0:
            with losses.open("a", encoding="utf-8") as file:
                file.write(json.dumps(float(loss)) + "\n")


def main() -> None:
    """Read the command line, join, train."""
    parser = argparse.ArgumentParser(prog="python -m experiments.sharding.processes")
    for name in ("number", "rank", "port", "steps", "length", "width", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--losses", type=Path, required=True)
    options = parser.parse_args()
    join(options.number, options.rank, options.port)
    size = Size(options.length, options.width, options.batch)
    train(size, options.steps, options.losses, options.method)


if __name__ == "__main__":
    main()
