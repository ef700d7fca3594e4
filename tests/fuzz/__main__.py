"""Search for programs that fail, until time is up: ``python -m tests.fuzz --seconds 600``.

Or ``make fuzz SECONDS=600``. Of every sort of failure the smallest program is printed, as Python
that runs by itself. To look at one seed again:
``python -m tests.fuzz --first 1234 --count 1``.
To search another checkout, run it there, with this one's root as ``PYTHONPATH``.
"""

import argparse
import itertools
import random
import time
import warnings
from collections import Counter
from typing import Any

import jax

import tests.conftest  # noqa: F401  # the same strict numerics
from tests.fuzz import net
from tests.fuzz.drawing import draw

LONGEST = 120.0  # seconds for making one program smaller


def main() -> int:
    """Print what fails; 1 if anything does."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to search")
    parser.add_argument(
        "--first",
        type=int,
        default=random.SystemRandom().randrange(10**6),
        help="the seed to begin with",
    )
    parser.add_argument("--count", type=int, default=None, help="how many seeds at most")
    options = parser.parse_args()
    warnings.simplefilter("error")
    began = time.monotonic()
    until = began + options.seconds
    counts: Counter[str] = Counter()
    shown: list[tuple[str, Any]] = []
    print(f"programs from seed {options.first} on", flush=True)
    for seed in itertools.islice(itertools.count(options.first), options.count):
        program = draw(seed)
        try:
            failure = net.find_failure(program)
        except net.Meaningless:
            counts["have no answer"] += 1
            continue
        counts["right" if failure is None else "failures"] += 1
        if failure is not None:
            longest = time.monotonic() + LONGEST
            program, failure = net.shrink(program, failure, net.find_failure, longest)
            once_more = f"python -m tests.fuzz --first {seed} --count 1"
            if (same := (failure.kind, program.sort)) in shown:
                print(f"# {failure.kind}, as above: {once_more}", flush=True)
            else:
                shown.append(same)
                found = net.report(program, failure)
                print(f"\n{found}\n# to search for it again: {once_more}\n", flush=True)
        if time.monotonic() > until:
            break
        if seed % 20 == 0:
            jax.clear_caches()  # each program is compiled, and seen once
    seconds = time.monotonic() - began
    print(
        f"{sum(counts.values())} programs in {seconds:.0f} s: "
        + ", ".join(f"{n} {word}" for word, n in sorted(counts.items()))
    )
    return 1 if shown else 0


if __name__ == "__main__":
    raise SystemExit(main())
