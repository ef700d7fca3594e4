"""Random programs: `scan`, `solve` and `forward` do what the sequential program does.

``make fuzz SECONDS=600`` tries more.
"""

import time

import pytest

from tests.fuzz import net

SCANS, FORWARDS = (2, 3), (1, 2, 3)


@pytest.mark.parametrize(
    ("sort", "seed"),
    [*(("scan", seed) for seed in SCANS), *(("forward", seed) for seed in FORWARDS)],
)
def test_a_random_program(sort, seed):
    draw, smaller = net.SORTS[sort]
    program = draw(seed)
    failure = net.find_failure(program)
    if failure is not None:
        program, failure = net.shrink(
            program, failure, smaller, net.find_failure, time.monotonic() + 30
        )
        pytest.fail(net.report(program, failure), pytrace=False)
