"""Several local processes that train one stack together, over gloo on the loopback interface."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.sharding_rows.stack import Size
from experiments.sharding_rows.worker import HEARTBEAT

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-6  # relative: the same program on the same parts, but sums over processes may take another order
GRACE = 6.0 * HEARTBEAT  # seconds in which the rest ends by itself once one has failed
POLL = 0.05
TAIL = 1500  # characters of what a failed process has printed


class Failed(RuntimeError):
    """A process ended with an error, or none of them ended in time."""


@dataclass(frozen=True)
class Team:
    """The processes, and the folder with what they print and the losses."""

    processes: Sequence[subprocess.Popen[bytes]]
    folder: Path

    @property
    def losses(self) -> list[float]:
        """What has been written so far."""
        path = self.folder / "losses"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def codes(self) -> list[int | None]:
        """Exit codes; None for who still runs."""
        return [process.poll() for process in self.processes]

    def wait(self, seconds: float) -> list[int | None]:
        """Exit codes once all have ended, or after ``seconds``, or ``GRACE`` after the first error."""
        end, failed = time.monotonic() + seconds, False
        while None in self.codes() and time.monotonic() < end:
            if not failed and any(self.codes()):
                end, failed = min(end, time.monotonic() + GRACE), True
            time.sleep(POLL)
        return self.codes()

    def printed(self, rank: int) -> str:
        """The end of what a process has printed."""
        return (self.folder / f"{rank}.log").read_text(errors="replace")[-TAIL:]


@contextmanager
def team(number: int, size: Size, steps: int, method: str = "newton") -> Iterator[Team]:
    """Start the processes; whatever happens, none of them is left at the end."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), _free_port()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(number):
                options = {
                    "number": number,
                    "rank": rank,
                    "port": port,
                    "steps": steps,
                    "losses": folder / "losses",
                }
                options |= {
                    "method": method,
                    "length": size.length,
                    "width": size.width,
                    "batch": size.batch,
                }
                command = [sys.executable, "-m", "experiments.sharding_rows.worker"]
                command += [
                    word for key, value in options.items() for word in (f"--{key}", str(value))
                ]
                with (folder / f"{rank}.log").open("wb") as log:
                    around = os.environ | {"JAX_PLATFORMS": "cpu"}
                    processes.append(
                        subprocess.Popen(
                            command, cwd=ROOT, env=around, stdout=log, stderr=subprocess.STDOUT
                        )
                    )
            yield Team(processes, folder)
        finally:
            for process in processes:
                process.kill()  # SIGKILL: under jax.distributed they ignore SIGTERM
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
                raise Failed(
                    f"process {rank} of {number} ended with {code}; all: {codes}\n{running.printed(rank)}"
                )
        if None in codes:
            raise Failed(
                f"{codes.count(None)} of {number} processes have not ended after {seconds:.0f} s"
            )
        return running.losses


def _free_port() -> int:
    """A port that no one uses; between here and the start of a process someone might."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
