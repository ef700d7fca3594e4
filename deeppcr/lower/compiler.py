"""Options of XLA for programs whose loops end where their data says.

By default the host of a GPU decides whether a loop goes on: it waits for the condition before each
trip, so that a Newton solve waits once an iteration. CUDA graphs have conditional nodes, by which
the device decides. XLA makes them of loops and branches only with an option.

References:
    NVIDIA, *CUDA C++ Programming Guide*, section "Conditional Graph Nodes". XLA,
    ``xla/debug_options_flags.cc`` and ``command_buffer_conversion_pass.cc``.
"""

from deeppcr.checks import describe, did_you_mean
from deeppcr.lower.variants import platform as default_platform

Option = bool | int | str
# Those of XLA by default, and loops and branches; also where fewer than five kernels follow. And
# without the pass by which the host computes the addresses of copies at the index of a loop, as
# where a loop returns its states: XLA captures no loop that has such a copy (jax 0.10.2).
GRAPHS: dict[str, Option] = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,"
    "DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL",
    "xla_gpu_graph_min_graph_size": 1,
    "xla_disable_hlo_passes": "fusion-dynamic-memcpy-rewriter",
}
OPTIONS: dict[str, dict[str, Option]] = {
    "cpu": {},
    "cuda": GRAPHS,
    "gpu": GRAPHS,
    "rocm": {},
    "tpu": {},
}


def compiler_options(platform: str | None = None) -> dict[str, Option]:
    """Options for ``jax.jit(f, compiler_options=...)`` with which a GPU decides when loops end.

    On an NVIDIA GPU, Newton's method by default waits for the host once in each iteration after the
    third, and for each fallback. With these options XLA captures loops and branches in CUDA graphs:
    the host launches a solve, or its gradient, as one graph, and waits for nothing. Programs with
    loops that XLA cannot capture run as they do without. The result is the same.

    It needs a driver for CUDA 12.3 or newer; under an older one XLA ignores the options. It is not
    the default of XLA, and little used. Such programs have run on an H100 under jax 0.11, also for
    many calls. Calls that wait for each result need not gain, nor does a plain `jax.lax.scan`,
    since the device then evaluates its condition in each trip.

    Args:
        platform: jax's name of a platform: "cpu", "cuda", "gpu", "rocm" or "tpu"; "gpu" is one by
            NVIDIA. None for that of jax's default device.

    Returns:
        The options by name; empty on other platforms than NVIDIA GPUs.

    Raises:
        ValueError: the platform is unknown.

    Example:
        >>> options = deeppcr.compiler_options()  # of the default device
        >>> solve = jax.jit(lambda x: deeppcr.scan(
        ...     lambda z, x: (jnp.tanh(z + x), None), jnp.zeros(2), x, method="newton"
        ... )[0], compiler_options=options)
        >>> solve(jnp.ones((100, 2))).shape
        (2,)
    """
    name = default_platform() if platform is None else platform
    if not isinstance(name, str) or name not in OPTIONS:
        raise ValueError(
            f"platform is {describe(name)}, expected one of {', '.join(map(repr, OPTIONS))} or None"
            f"{did_you_mean(name, OPTIONS)}"
        )
    return dict(OPTIONS[name])
