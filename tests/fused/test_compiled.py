"""Kernels are compiled for a GPU that is not there, where jax has its plugin for CUDA."""

import re

import jax
import pytest

import deeppcr
from deeppcr.fused.backends import mosaic
from deeppcr.fused.kernel import run_kernel
from tests.fused.test_kernel import (  # noqa: F401
    MLP,
    L,
    as_users_write_it,
    fused,
    gru,
    layer,
    numbers,
)
from tests.targets import target_or_skip


@pytest.fixture(scope="module")
def gpu():
    return target_or_skip("H200")


CASES = {
    "GRU of 1": (gru(1), numbers(1), numbers(L, 2)),
    "GRU of 4": (gru(4), numbers(4), numbers(L, 2)),
    "GRU of 4, 64 examples": (gru(4), numbers(64, 4), numbers(L, 64, 2), 1),
    "layers of 4": (layer, numbers(4), MLP),
    "layers of 8": (layer, numbers(8), {"w": numbers(L, 8, 8), "b": numbers(L, 8)}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loop_is_one_kernel_in_registers(name, gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", str(tmp_path))
    step, arrays = fused(*CASES[name])

    def run(states, inputs, captured):
        return run_kernel(step, (states, inputs, captured), L, False, mosaic)

    lowered = gpu.lower(run, *jax.tree.map(jax.numpy.asarray, arrays))
    assert "mosaic_gpu" in lowered.as_text()
    assert gpu.compile(lowered, {}).thunks.count("kCustomCall") >= 1
    (said,) = [file.read_text() for file in tmp_path.glob("*.ptxas")]
    assert re.findall(r"(\d+) bytes spill", said) == ["0", "0"]


def test_a_kernel_of_an_unrolled_loop_computes_few_steps(gpu):
    """Else it computes steps again for each entry that reads them, exponentially in their number."""
    step, start, inputs = layer, numbers(4), {"w": numbers(64, 4, 4), "b": numbers(64, 4)}

    def states(z, x):
        method = deeppcr.Sequential(unroll=16)
        return deeppcr.solve(deeppcr.Chain(step, x), z, method=method).trajectory

    text = gpu.lower(states, start, inputs).compile().as_text()
    kernels = [part.partition("\n}")[0] for part in text.split("\n%fused_")[1:]]
    assert 1 <= max(kernel.count(" tanh(") for kernel in kernels) <= 2
