"""`plan`: does solving a chain in parallel pay off?"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Never

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import depth
from deeppcr.chain.step import on_no_mesh
from deeppcr.checks import check_count, describe, unknown_keyword
from deeppcr.choose import (
    Auto,
    Method,
    MethodOption,
    choose_adjoint,
    choose_method,
    find_method,
    left_to_jax,
)
from deeppcr.layers import Repeated
from deeppcr.linear import Sharded
from deeppcr.linearize import choose_linearization
from deeppcr.loops import ITERATION
from deeppcr.lower import obstacle
from deeppcr.newton import Newton
from deeppcr.newton.convergence import expected_iterations
from deeppcr.planning.instance import Instance, Pair, gradients, instances_of, name_of_pair
from deeppcr.planning.report import Candidate, ChainPlan, Plan, baseline, digits
from deeppcr.sequential import Sequential
from deeppcr.sharding import find_sharding
from deeppcr.structure import find_structure
from depth.analysis import analyze_jaxpr
from depth.models import find_device
from depth.platforms import compiled_for

OF_AFFINE = "the step is affine in its state"  # which shapes alone show
USUAL = "usual for chains that forget their past"
PROVISO = {
    OF_AFFINE: " if the chain does not amplify rounding errors",
    USUAL: " if the chain forgets its past",
}
OF_LIST = "of deeppcr.stack(layers); a list compiles faster and runs slower: see deeppcr.forward"
MOST = 32  # iterations on a sample
STEPS = 1024  # of a sample, at most
ENTRIES = 1 << 21  # of its Jacobian blocks, at most


def plan(
    program: Any,
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    *,
    method: str | MethodOption = "auto",
    device: depth.Device | str | None = None,
    iterations: int | None = None,
    batch_ndim: int | None = None,
    **unknown: Never,
) -> Plan:
    """Predict whether a parallel solution of a chain pays off, and say what "auto" takes and why.

    ``plan(f, init, xs)`` takes what `scan` takes, ``plan(chain, z0)`` what `solve` takes, and
    ``plan(layers, x)`` what `forward` takes. Printed, the plan says what "auto" takes and why, the
    structure of the program (chains among layers, structure of the Jacobian, linearisation and
    window of Newton's method), and the candidates with their depth and predicted time, which
    `depth` reads off their programs; ``plan.main.forward[0].cost`` has all of the cost.

    The number of Newton iterations depends on values: on whether the chain forgets its past. So
    where Newton's method may be taken, and there are arrays to run, it is tried on the first steps
    of the chain, on the CPU, in about a second. Inside `jax.jit`, and with shapes, the plan assumes
    a chain that forgets, as "auto" always does, and says so. `deeppcr.tune` measures.

    Args:
        program: a step ``f(carry, x) -> (carry, y)``, as in `scan`; a `Chain`; or layers, as in
            `forward`.
        init: the carry before the first step; the initial state of the chain; or the input of the
            first layer: arrays, or `jax.ShapeDtypeStruct`.
        xs: the inputs of a step, as in `scan`. None for a chain and for layers, which hold theirs.
        length: L, an integer >= 0; needed only for a step without ``xs``.
        reverse: as in `scan`: whether a step takes the last entry of ``xs`` first.
        method: the method to compare with the sequential program; "auto": Newton's method.
        device: a `depth.Device`, or the name of one in `depth.devices`. None: jax's default device.
        iterations: integer >= 1, the number of Newton iterations that you have observed. None: from
            a sample of the chain where that may matter.
        batch_ndim: the number of leading batch axes of the state. None: 0 for a step and a `Chain`;
            for layers as in `deeppcr.forward`.
        **unknown: not used; the error names the closest argument.

    Returns:
        a `Plan`, whose ``method`` and ``adjoint`` are arguments for `scan`, `solve` and `forward`.

    Raises:
        ValueError: ``device`` or ``method`` is unknown; no layers form a chain; or lengths
            contradict each other.
        TypeError: the state has no floating-point entries; a function has neither ``xs`` nor
            ``length``; or a chain or layers have one of them, or ``reverse``.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((4096, 64)))
        >>> found = deeppcr.plan(chain, jnp.zeros(64), device="H200")
        >>> found.predicted_speedup > 2
        True
        >>> found.main.structure.kind
        'elementwise'
    """
    if unknown:
        raise unknown_keyword(plan, unknown)
    check_count("iterations", iterations, "how many iterations", optional=True)
    option = find_method(method)
    model = depth.at_hand() if device is None else find_device(device)
    layers, found = instances_of(program, init, xs, length, reverse, batch_ndim)
    is_list = layers is not None and not isinstance(program, Repeated)
    note = OF_LIST if is_list and model.platform == "cpu" else ""
    chains = (_plan_chain(each, option, model, iterations, note) for each in found)
    return Plan(layers, tuple(chains))


def _plan_chain(
    instance: Instance,
    option: MethodOption,
    device: depth.Device,
    iterations: int | None,
    note: str,
) -> ChainPlan:
    chain = instance.traced
    if not chain.initial:
        leaves = ", ".join(map(describe, jax.tree.leaves(instance.state)))
        raise TypeError(
            f"{instance.name} has leaves {leaves}, expected a floating one: nothing is solved for, "
            "and the chain runs as jax.lax.scan."
        )
    if not chain.length:
        raise ValueError("the chain has 0 steps, expected 1 or more: there is nothing to plan.")
    step, layout, length = chain.step, chain.layout, chain.length
    platform = str(device.platform)
    chosen = choose_method(chain, platform)
    asked = [each for each in (option, chosen.option) if isinstance(each, Newton)]
    newton = asked[0] if asked else Newton(damping=None)
    linear = choose_linearization(
        newton.linearize, step, layout, length, newton.window, newton.memory, length
    )
    nbytes = linear.linearization.bytes_per_step(step, layout)
    count = expected_iterations(length, linear.is_exact, is_affine=step.is_affine)
    source = OF_AFFINE if step.is_affine else USUAL
    if iterations:
        count, source = int(iterations), "as given"
    elif asked and instance.has_arrays:
        count, source = _tried(instance, newton, nbytes // layout.dtype.itemsize)
    if source != USUAL:
        chosen = choose_method(chain, platform, count)
    method: Method = chosen.option if isinstance(option, Auto) else option
    adjoint, left = choose_adjoint(chain, method, platform).option, left_to_jax(chain)
    methods = [method]
    if asked or iterations or "newton" in chosen.seconds:
        methods += [] if chain.obstacle or step.not_differentiable else [newton]
    pairs: list[Pair] = [(each, None) for each in (*methods, Sequential())]
    forward = _candidates(instance, pairs, device, count)
    pairs = [(method, adjoint), *gradients(chain, methods)]
    gradient = _candidates(instance, pairs, device, count)

    batch = f", a batch of {layout.batch_size}" if layout.batch_shape else ""
    found = {
        "chosen": _promise(forward, gradient, source),
        "because": "the method that is asked for" if method is option else str(chosen),
        "chain": f"{length} steps, a state of {layout.width} entries{batch}",
        "structure": str(structure := find_structure(step, layout)),
    }
    if isinstance(method, Newton):
        kind = "exact: Newton's" if linear.is_exact else "not exact: a quasi-Newton"
        at_once = "all" if linear.window == length else str(linear.window)
        found |= {
            "linearize": f"{linear.linearization} ({kind} method)",
            "blocks": f"{linear.window * nbytes:,} bytes",
            "window": f"{at_once} steps at once" + (linear.reason and f": {linear.reason}"),
            "iterations": f"{count} ({source})",
        }
    elif asked and method is not option:  # the sample was against it
        found["because"] += f", {count} iterations: {source}"
    note = left or note or (obstacle() if platform == "cuda" else "")
    if note and note != found["because"]:
        found["note"] = note
    if sharding := find_sharding(instance.inputs, instance.sharding, newton):
        each = -(-length // sharding.size)
        found["devices"] = f"{sharding.size} along {sharding.mesh_axis!r}, up to {each} steps each"
    found["device"] = device.name
    return ChainPlan(structure, linear, device, found, forward, gradient)


def _promise(forward: tuple[Candidate, ...], gradient: tuple[Candidate, ...], source: str) -> str:
    """The choice and its speedups, and what they rest on."""
    best, of_both = forward[0], gradient[0]
    loop, autodiff = baseline(forward), baseline(gradient)
    text = best.name
    if best is not loop:
        text += f": {digits(loop.seconds / best.seconds)}x"
        text += PROVISO.get(source, "") if best.iterations else ""
    if of_both is autodiff:
        return text
    by = of_both.name.partition(" / ")[2]
    return f"{text}; gradient {digits(autodiff.seconds / of_both.seconds)}x by {by}"


def _candidates(
    instance: Instance, pairs: Sequence[Pair], device: depth.Device, iterations: int
) -> tuple[Candidate, ...]:
    """Different candidates, whose programs are traced for ``device``.

    ``iterations``: of Newton's method; without an end before: it is what is predicted.
    """
    found: dict[str, Candidate] = {}
    shapes = jax.tree.map(_shape, (instance.state, instance.inputs))
    for method, adjoint in pairs:
        name = name_of_pair(method, adjoint)
        if name in found:
            continue
        program, trips = method, {}
        if isinstance(method, Newton):
            program = dataclasses.replace(method, max_iterations=None)
            trips = {ITERATION: iterations}
        with compiled_for(str(device.platform)):
            jaxpr = jax.make_jaxpr(instance.program(program, adjoint))(*shapes)
            cost = analyze_jaxpr(jaxpr, trip_counts=trips or None)
        seconds = device.call_latency + cost.seconds(device)
        found[name] = Candidate(method, adjoint, cost, seconds, iterations if trips else 0)
    return tuple(found.values())


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    """The shape of an array, as one on one device."""
    return jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x))


def _tried(instance: Instance, method: Newton, block: int) -> tuple[int, str]:
    """The iterations that the whole chain will take, by those on its first steps; and in words.

    No bound from shapes or from the growth rate predicts them: a chain that forgets may hold
    iterates in the wrong basin for hundreds of iterations, and a linear chain takes one, however it
    amplifies differences. So the method itself runs. It runs on the CPU, where a step of a narrow
    chain takes no more than a microsecond.

    ``block``: the entries of the Jacobian blocks of one step.
    """
    length = instance.length
    steps = min(length, max(8, min(STEPS, ENTRIES // max(1, block))))
    linear = "auto" if isinstance(method.linear, Sharded) else method.linear
    tried = Newton(
        linearize=method.linearize,
        linear=linear,
        initial_guess=method.initial_guess,
        damping=method.damping,
        acceleration=method.acceleration,
        max_iterations=MOST,
        on_failure="return",
        record=True,
    )
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # this process was started without one
        cpu = jax.local_devices()[0]
    with jax.default_device(cpu), on_no_mesh():
        # A mesh of one: put on a device, arrays keep the types that they have on an explicit mesh.
        here = NamedSharding(Mesh([cpu], "here"), PartitionSpec())
        arrays = jax.device_put((instance.state, instance.inputs), here)
        state, inputs = jax.tree.map(jnp.asarray, arrays)
        first = dataclasses.replace(instance, length=steps)
        inputs = jax.tree.map(lambda x: x[:steps], inputs)
        stats = first.solve(state, inputs, method=tried).stats
    iterations, prefix = int(stats.iterations), int(stats.prefix)
    rate = math.nan if stats.growth_rate is None else float(stats.growth_rate)
    times = length / max(1, prefix)
    found = "from the whole chain" if steps == length else f"from its first {steps} steps"
    # Differences decay to a tenth of the digits within the sample, so a longer chain takes a few
    # iterations more; any other chain takes more in proportion to its length.
    forgets = steps == length or rate * steps < -math.log(1e3)
    if prefix == steps and forgets:
        count = iterations + round(math.log2(times) / 2)
    else:
        count = math.ceil(iterations * times)
    if prefix < steps:
        found = f"{prefix} of {steps} states converge in {iterations} iterations"
    if not math.isnan(rate):
        found += f"; differences {'grow' if rate > 0 else 'decay'} at {rate:+.3g} a step"
    return min(max(1, count), length + 1), found
