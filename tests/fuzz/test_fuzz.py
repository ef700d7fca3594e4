"""Random programs: `scan` and `solve` do what the sequential program does.

``make fuzz SECONDS=600`` tries more.
"""

import time

import pytest

from tests.fuzz import net
from tests.fuzz.drawing import draw


@pytest.mark.parametrize("seed", [2, 3])
def test_a_random_program(seed):
    program = draw(seed)
    failure = net.find_failure(program)
    if failure is not None:
        shrunk = net.shrink(program, failure, net.find_failure, time.monotonic() + 30)
        pytest.fail(net.report(*shrunk), pytrace=False)
