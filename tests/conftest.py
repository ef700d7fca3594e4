"""Strict numerics for every test, and programs compiled in a hurry.

What is promoted by accident in float64 is a bug in float32. Nearly every program here runs once, on
arrays of a few numbers: to optimise it takes far longer than to run it. Processes that a test
starts inherit this. XLA_FLAGS that are set already come last, and so prevail. To compile as users
do: ``XLA_FLAGS="--xla_backend_optimization_level=3 --xla_cpu_parallel_codegen_split_count=32"
make test``, on jax 0.10 with ``--xla_cpu_use_fusion_emitters=true``, too.
"""

import gc
import os
import signal

import jax
import pytest

HURRIED = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):  # since then, XLA has no other emitters, and aborts at the flag
    HURRIED.append("--xla_cpu_use_fusion_emitters=false")

os.environ["XLA_FLAGS"] = " ".join(
    [*HURRIED, os.environ.get("XLA_FLAGS", "")]
)  # read when the first program is compiled
# Every operation of a program lists where it was called, which is deep below the runner of tests.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # for processes that a test starts
jax.config.update("jax_traceback_in_locations_limit", 0)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts what runs in its background so, and processes that tests interrupt inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_modifyitems(items):
    """The longest test first: at the end, all but one worker would wait for it."""
    items.sort(key=lambda item: "every_python_block" not in item.name)


def pytest_collection_finish():
    """Look for garbage less often, and not among what was imported: jax makes very many objects.

    On accelerators the products of the oracle are those of its dtype, not of a shorter one.
    """
    if jax.default_backend() != "cpu":  # known by now: modules of tests have made arrays
        jax.config.update("jax_default_matmul_precision", "highest")
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)


@pytest.fixture
def _nothing_older():
    """What tests before left is not searched for garbage, which would take seconds."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def compiled():
    """The programs compiled so far, in a list that grows."""
    found = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)
