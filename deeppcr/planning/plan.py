"""`plan`: does solving a chain in parallel pay off?"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Never

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import depth
from deeppcr.api import solve
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
from deeppcr.planning.candidate import Candidate, baseline, gradients
from deeppcr.planning.instance import Instance, instance_of
from deeppcr.planning.report import Plan, digits
from deeppcr.sequential import Sequential
from deeppcr.sharding import find_sharding
from deeppcr.structure import find_structure
from depth.analysis import analyze_jaxpr
from depth.models import find_device
from depth.platforms import compiled_for

USUAL = "usual for chains that forget their past"
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
    `depth` reads off their programs; ``plan.forward[0].cost`` has all of the cost.

    The number of Newton iterations depends on values: on whether the chain forgets its past. So
    where Newton's method may be taken, and there are arrays to run, it is tried on the first steps
    of the chain. Inside `jax.jit`, and with shapes, the plan assumes a chain that forgets, as
    "auto" always does, and says so. `deeppcr.tune` measures.

    Args:
        program: a step ``f(carry, x) -> (carry, y)``, as in `scan`; a `Chain`; or layers, as in
            `forward`, of which the longest chain is planned.
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
        >>> found.structure.kind
        'elementwise'
    """
    if unknown:
        raise unknown_keyword(plan, unknown)
    check_count("iterations", iterations, "how many iterations", optional=True)
    option = find_method(method)
    model = depth.at_hand() if device is None else find_device(device)
    instance = instance_of(program, init, xs, length, reverse, batch_ndim)
    chain, step, layout = instance.traced, instance.traced.step, instance.traced.layout
    if not chain.initial:
        leaves = ", ".join(map(describe, jax.tree.leaves(instance.state)))
        raise TypeError(
            f"{instance.name} has leaves {leaves}, expected a floating one: nothing is solved for, "
            "and the chain runs as jax.lax.scan."
        )
    if not chain.length:
        raise ValueError("the chain has 0 steps, expected 1 or more: there is nothing to plan.")
    platform, steps = str(model.platform), chain.length
    rule = choose_method(chain, platform)
    tried = [each for each in (option, rule.option) if isinstance(each, Newton)]
    newton = tried[0] if tried else Newton()
    linear = choose_linearization(
        newton.linearize, step, layout, steps, newton.window, newton.memory, steps
    )
    nbytes = linear.linearization.bytes_per_step(step, layout)
    count, source = expected_iterations(steps, linear.is_exact, 1, step.is_affine), USUAL
    if iterations:
        count, source = int(iterations), "as given"
    elif tried and instance.has_arrays:
        count, source = _sample(instance, newton, nbytes // layout.dtype.itemsize)
    if source != USUAL:
        rule = choose_method(chain, platform, count)
    chosen: Method = rule.option if isinstance(option, Auto) else option
    methods = [chosen]
    if not (chain.obstacle or step.not_differentiable):
        methods += [newton] * bool(tried or iterations or "newton" in rule.seconds)
    costs = partial(_costs, instance, device=model, iterations=count)
    adjoint = choose_adjoint(chain, chosen, platform).option
    forward = costs(map(Candidate, [*methods, Sequential()]))
    gradient = costs([Candidate(chosen, adjoint), *gradients(chain, methods)])

    because = str(rule) if isinstance(option, Auto) else "the method that is asked for"
    if tried and not isinstance(chosen, Newton):  # the sample was against it
        because += f", {count} iterations: {source}"
    batch = f", a batch of {layout.batch_size}" if layout.batch_shape else ""
    found = {
        "chosen": _promise(forward, gradient, source),
        "because": because,
        "chain": f"{steps} steps, a state of {layout.width} entries{batch}",
        "structure": str(structure := find_structure(step, layout)),
    }
    if isinstance(chosen, Newton):
        kind = "exact: Newton's" if linear.is_exact else "not exact: a quasi-Newton"
        at_once = "all" if linear.window == steps else str(linear.window)
        found |= {
            "linearize": f"{linear.linearization} ({kind} method)",
            "blocks": f"{linear.window * nbytes:,} bytes",
            "window": f"{at_once} steps at once" + (linear.reason and f": {linear.reason}"),
            "iterations": f"{count} ({source})",
        }
    is_list = instance.name == "x" and not isinstance(program, Repeated)
    of_list = OF_LIST if is_list and platform == "cpu" else ""
    notes = left_to_jax(chain), of_list, obstacle() if platform == "cuda" else ""
    if (note := next(filter(None, notes), because)) != because:
        found["note"] = note
    if sharding := find_sharding(instance.chain.inputs, instance.chain.sharding, newton):
        each = -(-steps // sharding.size)
        found["devices"] = f"{sharding.size} along {sharding.mesh_axis!r}, up to {each} steps each"
    found["device"] = model.name
    return Plan(structure, linear, model, found, forward, gradient)


def _promise(forward: Sequence[Candidate], gradient: Sequence[Candidate], source: str) -> str:
    """The choice and its speedups, and what they rest on."""
    text, (best, both) = forward[0].name, (forward[0], gradient[0])
    if best is not (loop := baseline(forward)):
        text += f": {digits(loop.seconds / best.seconds)}x"
        text += " if the chain forgets its past" if best.iterations and source == USUAL else ""
    if both is not (autodiff := baseline(gradient)):
        by = both.name.partition(" / ")[2]
        text += f"; gradient {digits(autodiff.seconds / both.seconds)}x by {by}"
    return text


def _costs(
    instance: Instance, candidates: Iterable[Candidate], device: depth.Device, iterations: int
) -> tuple[Candidate, ...]:
    """The different ones of these candidates, with what ``device`` is predicted to take.

    ``iterations``: of Newton's method, which has no end of its own here.
    """
    found: dict[str, Candidate] = {}
    # Arrays as those on one device.
    of = lambda x: jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x))  # noqa: E731
    shapes = jax.tree.map(of, (instance.state, instance.chain.inputs))
    for one in candidates:
        if one.name not in found:
            traced, count = one, 0
            if isinstance(one.method, Newton):
                method = dataclasses.replace(one.method, max_iterations=None)
                traced, count = dataclasses.replace(one, method=method), iterations
            with compiled_for(str(device.platform)):
                jaxpr = jax.make_jaxpr(instance.program(traced))(*shapes)
                cost = analyze_jaxpr(jaxpr, trip_counts={ITERATION: count} if count else None)
            time = device.call_latency + cost.seconds(device)
            found[one.name] = dataclasses.replace(one, cost=cost, seconds=time, iterations=count)
    return tuple(found.values())


def _sample(instance: Instance, method: Newton, block: int) -> tuple[int, str]:
    """The iterations that the whole chain will take, by those on its first steps; and in words.

    No bound from shapes or from the growth rate predicts them: a chain that forgets may hold
    iterates in the wrong basin for hundreds of iterations, and a linear chain takes one, however it
    amplifies differences. So the method itself runs.

    ``block``: the entries of the Jacobian blocks of one step.
    """
    length = instance.traced.length
    steps = min(length, max(8, min(STEPS, ENTRIES // max(1, block))))
    linear = "auto" if isinstance(method.linear, Sharded) else method.linear
    method = Newton(
        linearize=method.linearize,
        linear=linear,
        max_iterations=MOST,
        initial_guess=method.initial_guess,
        damping=method.damping,
        acceleration=method.acceleration,
        record=True,
        on_failure="return",
    )
    # Put on a mesh of one device, arrays keep the types that they have on an explicit mesh.
    mesh = Mesh(jax.local_devices()[:1], "here")
    with on_no_mesh():
        given = instance.state, instance.chain.inputs
        arrays = jax.device_put(given, NamedSharding(mesh, PartitionSpec()))
        state, inputs = jax.tree.map(jnp.asarray, arrays)
        inputs = jax.tree.map(lambda x: x[:steps], inputs)
        first = dataclasses.replace(instance.chain, inputs=inputs, length=steps, sharding=None)
        stats = solve(first, state, method=method, batch_ndim=instance.batch_ndim).stats
    iterations, prefix = int(stats.iterations), int(stats.prefix)
    rate = math.nan if stats.growth_rate is None else float(stats.growth_rate)
    times = length / max(1, prefix)
    # Differences decay to a tenth of the digits within the sample, so a longer chain takes a few
    # iterations more; any other chain takes more in proportion to its length.
    if prefix == steps and (steps == length or rate * steps < -math.log(1e3)):
        count = iterations + round(math.log2(times) / 2)
    else:
        count = math.ceil(iterations * times)
    found = "from the whole chain" if steps == length else f"from its first {steps} steps"
    if prefix < steps:
        found = f"{prefix} of {steps} states converge in {iterations} iterations"
    if not math.isnan(rate):
        found += f"; differences {'grow' if rate > 0 else 'decay'} at {rate:+.3g} a step"
    return min(max(1, count), length + 1), found
