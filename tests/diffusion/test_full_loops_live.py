"""The figures that diffusers' own tests expect of a full loop, with our sampler in its place."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

from tests.diffusion.full_loops import LOOPS, found

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.mark.parametrize("name", LOOPS)
def test_a_full_loop_ends_as_in_diffusers(name):
    loop = LOOPS[name]
    method = "picard" if name.endswith(("no noise", "LCM")) and loop.steps == 10 else "sequential"
    assert abs(found(loop, method) - loop.expected) < loop.tolerance
