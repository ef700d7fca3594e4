"""One of several processes that train a stack together: `python -m experiments.sharding_rows.worker --help`."""

import argparse
import json
from pathlib import Path
from typing import Any

import jax

from experiments.sharding_rows import stack
from experiments.sharding_rows.measured import mesh_of

DEVICES = 8
HEARTBEAT = 5  # seconds without a sign of life after which a process counts as dead
CONNECT = 60  # seconds until all have to be there


def join(number: int, rank: int, port: int) -> None:
    """Become one of the processes; together they have 8 simulated devices."""
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


def train(size: stack.Size, steps: int, losses: Path, method: str) -> None:
    """Train, and write the losses, a line each step, if this is the first process."""
    mesh = mesh_of((DEVICES,), ("chain",))
    chain, batch = stack.placed(size, mesh)
    step = stack.parallel_step(chain, mesh, method)
    weights: Any = chain.inputs
    for _ in range(steps):
        loss, weights = jax.block_until_ready(step(weights, batch))
        if jax.process_index() == 0:
            with losses.open("a", encoding="utf-8") as file:
                file.write(json.dumps(float(loss)) + "\n")


def main() -> None:
    """Read the command line, join, train."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.sharding_rows.worker", description=__doc__
    )
    for name in ("number", "rank", "port", "steps", "length", "width", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--losses", type=Path, required=True)
    options = parser.parse_args()
    join(options.number, options.rank, options.port)
    train(
        stack.Size(options.length, options.width, options.batch),
        options.steps,
        options.losses,
        options.method,
    )


if __name__ == "__main__":
    main()
