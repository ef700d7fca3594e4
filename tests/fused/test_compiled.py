"""Kernels are compiled for a GPU that is not there, as far as the tools for it are."""

import re
import shutil
import subprocess
from functools import partial
from itertools import product
from types import SimpleNamespace

import jax
import pytest

import deeppcr
from deeppcr.lower.gpu.fused import fused_scan, nvrtc, windows
from deeppcr.lower.gpu.fused.kernel import kernel_of
from deeppcr.lower.variants import compiled_for
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

FUSED = deeppcr.Newton(fused=True)
CASES = {
    "GRU of 1": (gru(1), numbers(1), numbers(L, 2)),
    "GRU of 4": (gru(4), numbers(4), numbers(L, 2)),
    "GRU of 4, 64 examples": (gru(4), numbers(64, 4), numbers(L, 64, 2), 1),
    "layers of 4": (layer, numbers(4), MLP),
    "GRU of 16, 8 examples": (gru(16), numbers(8, 16), numbers(L, 8, 2), 1),
    "GRU of 32": (gru(32), numbers(32), numbers(L, 2)),
    "layers of 32": (layer, numbers(32), {"w": numbers(L, 32, 32), "b": numbers(L, 32)}),
    "layers of 8": (layer, numbers(8), {"w": numbers(L, 8, 8), "b": numbers(L, 8)}),
}


@pytest.fixture(scope="module")
def gpu():
    return target_or_skip("H200")


@pytest.fixture
def without_compiler(monkeypatch):
    """As if there were NVRTC, but nothing is compiled: the text of a kernel stands for its PTX."""
    monkeypatch.setattr(nvrtc, "missing", lambda: "")
    monkeypatch.setattr(nvrtc, "ptx", lambda text, *_: text)


def lowered(f, *arguments):
    """The program of ``f`` for a GPU, as text."""
    return jax.jit(lambda *x: f(*x)).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_program_for_a_gpu_is_one_call(reverse, without_compiler):
    step, arrays = fused(*CASES["GRU of 4, 64 examples"])
    text = lowered(partial(fused_scan, step, reverse=reverse, length=L), *arrays)
    assert "while" not in text
    assert re.findall(r"custom_call @(\S+)\(", text) == [nvrtc.TARGET]
    assert "extern \\22C\\22 __global__" in text
    assert re.findall(r"(grid|block)_x = (\d+)", text) == [("block", "32"), ("grid", "8")]
    assert "output_indices = dense<[5, 6]>" in text  # after the state, inputs and three weights


def test_without_a_compiler_it_is_a_loop(monkeypatch):
    monkeypatch.setattr(nvrtc, "missing", lambda: "none is installed")
    step, arrays = fused(*CASES["GRU of 1"])
    text = lowered(partial(fused_scan, step, reverse=False, length=L), *arrays)
    assert ("while" in text, "custom_call" in text) == (True, False)


def test_it_says_why_there_are_no_kernels(monkeypatch):
    def broken(text, *_):
        raise RuntimeError("NVRTC does not compile a kernel: no disk")

    monkeypatch.setattr(nvrtc, "ptx", broken)
    monkeypatch.setattr(nvrtc, "_library", object)
    assert "no disk" in nvrtc.missing.__wrapped__()
    monkeypatch.setattr(nvrtc, "_library", lambda: None)
    assert "pip install jax[cuda13]" in nvrtc.missing.__wrapped__()
    monkeypatch.setattr(nvrtc, "KNOWN", ((0, 1), (0, 10)))
    assert f"jax {jax.__version__}" in nvrtc.missing.__wrapped__()


def test_an_old_gpu_runs_no_kernels(monkeypatch):
    monkeypatch.setattr(
        jax, "local_devices", lambda backend: [SimpleNamespace(compute_capability="7.0")]
    )
    assert "Turing" in nvrtc.obstacle()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda kernel, operands, results: [2 * operands[0]], ""),
        (lambda kernel, operands, results: [3 * operands[0]], "wrong results"),
        (lambda kernel, operands, results: {}[kernel], "calls no kernel"),
    ],
)
def test_a_trial_on_the_gpu_decides(answer, words, monkeypatch):
    monkeypatch.setattr(nvrtc, "launch", answer)
    found = []

    def step(z, x):  # where it is asked, a program is traced
        found.append(nvrtc.refused.__wrapped__(jax.local_devices(backend="cpu")[0]))
        return z, x

    jax.make_jaxpr(lambda z: jax.lax.scan(step, z, z))(numbers(2))
    assert words in found[0]
    assert bool(found[0]) == bool(words)


def test_an_older_driver_reads_it():
    text = '.version 9.5\n.target sm_75\n\t.pragma "used_bytes_mask 0xff0";\n\tret;\n'
    assert nvrtc.readable(text, (9, 5)) == nvrtc.readable(text, (10, 0)) == text
    assert nvrtc.readable(text, (7, 0)) == ".version 7.0\n.target sm_75\n\tret;\n"


def test_a_solve_for_a_gpu_is_one_call(without_compiler):
    def states(z, x):
        return deeppcr.scan(lambda h, x: (gru(4)(h, x), None), z, x, method=FUSED)[0]

    with compiled_for("cuda"):
        text = lowered(states, *CASES["GRU of 4"][1:])
    assert "while" not in text
    assert re.findall(r"custom_call @(\S+)\(", text) == [nvrtc.TARGET]


SOLVES = ["GRU of 1", "GRU of 4", "GRU of 4, 64 examples", "layers of 8", "GRU of 16, 8 examples"]


@pytest.mark.parametrize(
    ("name", "cluster"), [*((name, None) for name in CASES), *product(SOLVES, [1, 8])]
)
def test_all_of_it_is_in_registers(name, cluster, tmp_path):
    if nvrtc.missing() or shutil.which("ptxas") is None:
        pytest.skip("needs ptxas and NVRTC: pip install nvidia-cuda-nvcc nvidia-cuda-nvrtc")
    step, _ = fused(*CASES[name])
    kernel = kernel_of(step, 1000, False)
    if cluster:
        kernel = windows.kernel_of(step, 1000, False, windows.SolvedBelow(9), cluster)
    clusters = kernel.cluster > 1
    text = nvrtc.ptx(kernel.text, "name", nvrtc.HOPPER if clusters else nvrtc.TURING)
    text = nvrtc.readable(text, (7, 8) if clusters else (7, 0))
    for architecture in ("sm_90",) if clusters else ("sm_80", "sm_90"):
        program, out = tmp_path / "kernel.ptx", tmp_path / "kernel"
        program.write_text(text)
        command = ["ptxas", "-v", f"-arch={architecture}", program, "-o", out]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        assert re.findall(r"(\d+) bytes spill", said) == ["0", "0"]


def kinds(thunks):
    """What XLA calls them, and those in them."""
    inner = [each for thunk in thunks for part in thunk.parts.values() for each in kinds(part)]
    return [thunk.kind for thunk in thunks] + inner


def test_xla_runs_it_as_one_kernel(gpu):
    if reason := nvrtc.missing():
        pytest.skip(reason)
    step, arrays = fused(*CASES["GRU of 4, 64 examples"])
    lowered = gpu.lower(partial(fused_scan, step, reverse=False, length=L), *arrays)
    assert "fused_scan_" in lowered.as_text()
    assert kinds(gpu.compile(lowered).thunks) == ["kCustomKernel"]


def test_xla_runs_a_gradient_without_a_loop(gpu):
    """And the host waits for nothing."""
    if reason := nvrtc.missing():
        pytest.skip(reason)

    def loss(z, x):
        scan = partial(deeppcr.scan, method=FUSED, adjoint=deeppcr.Adjoint())
        return scan(lambda h, x: (gru(4)(h, x), h), z, x)[1].sum()

    lowered = gpu.lower(jax.grad(loss), *CASES["GRU of 4"][1:])
    found = kinds(gpu.compile(lowered).thunks)
    assert lowered.as_text().count('name = "fused_solve_') == 2
    assert "kWhile" not in found
    assert 2 < found.count("kCustomKernel") < 20


def test_a_kernel_of_an_unrolled_loop_computes_few_steps(gpu):
    """Else it computes steps again for each entry that reads them, exponentially in their number."""
    step, start, inputs = layer, numbers(4), {"w": numbers(64, 4, 4), "b": numbers(64, 4)}

    def states(z, x):
        method = deeppcr.Sequential(unroll=16)
        return deeppcr.solve(deeppcr.Chain(step, x), z, method=method).trajectory

    text = gpu.lower(states, start, inputs).compile().as_text()
    kernels = [part.partition("\n}")[0] for part in text.split("\n%fused_")[1:]]
    assert 1 <= max(kernel.count(" tanh(") for kernel in kernels) <= 2
