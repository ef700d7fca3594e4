"""Iterations of Newton's method against length and growth rate: where a chain is predictable.

X. Gonzalez, L. Kozachkov, D. M. Zoltowski, K. L. Clarkson, S. W. Linderman, *Predictability Enables
Parallelization of Nonlinear State Space Models* (NeurIPS 2025): the number of iterations hardly
depends on T where the largest Lyapunov exponent is negative, and is about T where it is positive.
"""

import math
from collections.abc import Iterator, Sequence

import jax

import deeppcr
from deeppcr import Newton
from experiments.bench.engine import solve_statistics
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.models import published

GAINS = (0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.2)
LENGTHS = (64, 128, 256, 512)
QUICK_GAINS, QUICK_LENGTHS = (0.6, 1.0, 1.8), (32, 64)
CLEAR = 0.02  # per step: rates nearer to 0 show only on longer chains


def rows(gains: Sequence[float], lengths: Sequence[int]) -> Iterator[Row]:
    """A row for each gain and length, and the verdict at the end."""
    found: list[Row] = []
    for length in lengths:
        # Plain Newton, with as many iterations as always suffice.
        method = Newton(linearize="dense", damping=None, max_iterations=length + 1, record=True)
        step = published.mean_field_rnn(1.0, length).step
        solve = jax.jit(
            lambda z0, inputs, step=step, method=method: deeppcr.solve(
                deeppcr.Chain(step, inputs), z0, method=method
            )
        )
        for gain in gains:
            PROGRESS.say(
                f"solving gain {gain}, L = {length}", len(found) / len(gains) / len(lengths)
            )
            model = published.mean_field_rnn(gain, length)
            solution = solve(model.z0, model.inputs)
            row = {"part": "predictability", "problem": "mean-field RNN", "gain": gain, "L": length}
            row |= {"growth rate": float(solution.stats.growth_rate)}
            found.append(row | solve_statistics([solution]))
            yield found[-1]
    yield verdict(found)


def verdict(found: Sequence[Row]) -> Row:
    """Whether iterations are flat where differences decay, and about T where they grow.

    The exponent p of ``iterations ~ T^p`` between the shortest and the longest chain tells; the
    rate is that of the longest.
    """
    slopes = [(rate, slope) for rate, slope in exponents(found) if abs(rate) > CLEAR]
    flat = [slope for rate, slope in slopes if rate < 0]
    steep = [slope for rate, slope in slopes if rate > 0]
    holds = bool(flat and steep) and max(flat) < 0.5 < min(steep)
    return {
        "part": "published",
        "problem": "mean-field RNN",
        "L": max(row["L"] for row in found),
        "source": "LLE",
        "options": "dense",
        "published": "T^0, T^1",
        "ours": ", ".join(f"T^{p:.1f}" for p in (max(flat, default=0), min(steep, default=0))),
        "pass": "yes" if holds else "no",
    }


def exponents(found: Sequence[Row]) -> list[tuple[float, float]]:
    """``(growth rate, p)`` of each gain."""
    pairs = []
    for gain in dict.fromkeys(row["gain"] for row in found):
        mine = sorted((row for row in found if row["gain"] == gain), key=lambda row: int(row["L"]))
        first, last = mine[0], mine[-1]
        slope = math.log(last["iterations"] / first["iterations"]) / math.log(
            last["L"] / first["L"]
        )
        pairs.append((last["growth rate"], slope))
    return pairs
