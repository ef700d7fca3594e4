"""`plan`: does a parallel solution pay off? What "auto" takes and why, and predicted times."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Never

import jax
import jax.numpy as jnp

import depth
from deeppcr.api import solve
from deeppcr.checks import check_count, folded, unknown_keyword
from deeppcr.choose import (
    AdjointOption,
    Auto,
    Method,
    MethodOption,
    choose_adjoint,
    choose_method,
    find_method,
    left_to_jax,
)
from deeppcr.layers import Stack
from deeppcr.linearize import LinearizationChoice, choose_linearization
from deeppcr.loops import ITERATION
from deeppcr.lower import expecting, obstacle
from deeppcr.newton import Newton
from deeppcr.newton.convergence import expected_iterations
from deeppcr.planning.candidates import (
    Candidate,
    Instance,
    baseline,
    instance_of,
    kept_by,
)
from deeppcr.planning.compiling import LONG, compiled, tpu_seconds
from deeppcr.sequential import Sequential
from deeppcr.sharding import find_sharding
from deeppcr.structure import Structure, find_structure
from depth.analysis import analyze_loops
from depth.cost import call_seconds
from depth.models import find_device
from depth.platforms import compiled_for
from depth.report import count, seconds, table

USUAL_CHAINS = "usual for chains that forget their past"
OF_LIST = "of deeppcr.stack(layers); a list compiles faster and runs slower: see deeppcr.forward"
SLOW = "XLA is predicted to compile this gradient for more than a minute; a loop compiles faster"
MOST_ITERATIONS = 32  # iterations on a sample
STEPS = 1024  # of a sample, at most
SAMPLE_ENTRIES = 1 << 21  # of its Jacobian blocks, at most
# The error of the ratio of two predicted times, as a factor: nine of ten predicted speedups of 112
# programs are closer (2 cores, jax 0.12.0 and 0.10.2).
ERROR = 2.0
PLAN_HEAD = ("forward", "depth", "predicted", "speedup", "")
UNTRIED = ("  Newton", "", "", "", "not tried: cannot win here")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What "auto" takes and why, and what each candidate is predicted to take. Printed, a table.

    Attributes:
        structure: which entries of the state influence each other, as its program proves.
        choice: the linearisation of Newton's method, its window, and the reason.
        device: the device that times are predicted for.
        found: what is printed above the candidates, by name.
        forward: the candidates for a forward pass, the chosen one first.
        gradient: the candidates for a forward and a backward pass, the chosen one first.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((4096, 64)))
        >>> plan = deeppcr.plan(chain, jnp.zeros(64), device="H200")
        >>> plan.predicted_speedup > 2
        True
    """

    structure: Structure
    choice: LinearizationChoice
    device: depth.Device
    found: Mapping[str, str]
    forward: Sequence[Candidate]
    gradient: Sequence[Candidate]

    @property
    def method(self) -> Method:
        """What "auto" takes, as a value of ``method=``.

        With a sample, and where the predictions leave no doubt, what it should take.
        """
        return self.forward[0].method or Sequential()

    @property
    def adjoint(self) -> AdjointOption:
        """The same for derivatives, as a value of ``adjoint=``."""
        return self.gradient[0].adjoint

    @property
    def sequential(self) -> Candidate:
        """`jax.lax.scan`, the sequential program as it is."""
        return baseline(self.forward)

    @property
    def autodiff(self) -> Candidate:
        """`jax.lax.scan` with jax's own derivative."""
        return baseline(self.gradient)

    @property
    def newton(self) -> Candidate | None:
        """The candidate for a forward pass by Newton's method; None if it is not tried."""
        return next((one for one in self.forward if isinstance(one.method, Newton)), None)

    @property
    def predicted_speedup(self) -> float:
        """Speedup of the forward pass over the sequential program."""
        return self.sequential.seconds / self.forward[0].seconds

    @property
    def gradient_speedup(self) -> float:
        """Speedup of forward and backward pass over jax's own gradient of that program."""
        return self.autodiff.seconds / self.gradient[0].seconds

    def __str__(self) -> str:
        rows = _rows(self.forward) + ([] if self.newton else [UNTRIED])
        body = table(PLAN_HEAD, [*rows, ("gradient",), *_rows(self.gradient)], "<>>><")
        head = table((), [*self.found.items()], "<<")
        return f"{folded(head, max(map(len, self.found)) + 2)}\n\n{folded(body, 52)}"


def _rows(candidates: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """The chosen candidate first, then the fastest; each beside the sequential program."""
    chosen, plain = candidates[0], baseline(candidates)
    rows: list[tuple[str, ...]] = []
    for one in sorted(candidates, key=lambda one: (one is not chosen, one.seconds)):
        faster, why = ("", "") if one is plain else _verdict(one, plain)
        if one is chosen:  # predicted slower, it is chosen for its measured times
            faster, why = "chosen", why if faster == "faster" else ""
        words = ": ".join(filter(None, (faster, why)))
        numbers = count(one.cost.depth), seconds(one.seconds)
        rows.append((f"  {one.name}", *numbers, f"{plain.seconds / one.seconds:.2f}x", words))
    return rows


def _verdict(one: Candidate, plain: Candidate) -> tuple[str, str]:
    """Whether it is faster or slower than the sequential program, and why."""
    if one.seconds < plain.seconds:
        is_shallower = plain.cost.depth > 1.2 * one.cost.depth
        return "faster", "less depth" if is_shallower else "cheaper steps"
    more = one.cost.work / max(plain.cost.work, 1)
    return "slower", f"{_digits(more)}x the work" if more > 1.2 else ""


def _digits(ratio: float) -> str:
    """A ratio with two digits or more: 0.65, 104."""
    return f"{ratio:.2g}" if ratio < 10 else count(ratio)


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
        TypeError: ``init`` or ``xs`` has a leaf that is no array; the state has no floating-point
            entries; a function has neither ``xs`` nor ``length``; or a chain or layers have one of
            them, or ``reverse``.

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
    check_count("iterations", iterations, "number of iterations", optional=True)
    option = find_method(method)
    model = depth.at_hand() if device is None else find_device(device)
    instance = instance_of(program, init, xs, length, reverse, batch_ndim)
    chain, step, layout = instance.traced, instance.traced.step, instance.traced.layout
    platform, steps = str(model.platform), chain.length
    rule = choose_method(chain, platform)
    tried = [each for each in (option, rule.option) if isinstance(each, Newton)]
    newton = tried[0] if tried else Newton()
    linear = choose_linearization(
        newton.linearize, step, layout, steps, newton.window, newton.memory
    )
    nbytes = linear.linearization.bytes_per_step(step, layout)
    sharding = find_sharding(instance.chain.inputs, instance.chain.sharding, newton)
    number, source = expected_iterations(steps, linear.is_exact, 1, step.is_affine), USUAL_CHAINS
    if iterations:
        number, source = int(iterations), "as given"
    elif tried and not instance.why_not_now:
        block = nbytes // layout.dtype.itemsize
        number, source = _sample(instance, newton, block, sharding.size if sharding else 1)
    if source != USUAL_CHAINS:
        rule = choose_method(chain, platform, number)
    chosen: Method = rule.option if isinstance(option, Auto) else option
    methods = [chosen]
    if not (chain.obstacle or step.not_differentiable):
        methods += [newton] * bool(tried or iterations or "newton" in rule.seconds)
    adjoint = choose_adjoint(chain, chosen, platform)
    forward, gradient = instance.candidates(methods, adjoint.option)
    forward = [_predicted(instance, each, model, number) for each in forward]
    gradient = [_predicted(instance, each, model, number) for each in gradient]
    because, for_adjoint = "the method that is asked for", str(adjoint)
    if isinstance(option, Auto):
        forward, because = _without_doubt(forward, str(rule))
        gradient, for_adjoint = _without_doubt(gradient, for_adjoint, forward[0].method)
    structure = find_structure(step, layout)
    batch = f", a batch of {layout.batch_size}" if layout.batch_shape else ""
    facts = {
        "chosen": _promise(forward, [] if step.not_differentiable else gradient, source),
        "because": because,
        "adjoint": for_adjoint,
        "chain": f"{steps} steps, a state of {layout.width} entries{batch}",
        "structure": str(structure),
    }
    if for_adjoint == because:  # an obstacle
        del facts["adjoint"]
    elif platform == "cpu" and not (tried or left_to_jax(chain)):
        facts["kept"] = kept_by(gradient[0].adjoint, chain)
    if any(isinstance(each, Newton) for each in methods):
        kind = "exact: Newton's" if linear.is_exact else "not exact: a quasi-Newton"
        at_once = "all" if linear.window == steps else str(linear.window)
        facts |= {
            "linearize": f"{linear.linearization} ({kind} method)",
            "blocks": f"{linear.window * nbytes:,} bytes",
            "window": f"{at_once} steps at once" + (linear.reason and f": {linear.reason}"),
            "iterations": f"{number} ({source})",
        }
    ours, plain = gradient[0].cost.program, baseline(gradient).cost.program
    if platform in ("cpu", "tpu"):
        numbers = compiled(ours, platform), compiled(plain, platform)
        facts["compiles"] = "{} kernels of a gradient; jax.lax.scan {}".format(*numbers)
    if platform == "cpu" and instance.name == "x" and not isinstance(program, Stack):
        facts["note"] = OF_LIST
    elif platform == "cuda" and (why := obstacle()):
        facts["note"] = why
    elif platform == "tpu" and tpu_seconds(ours) > LONG:
        facts["note"] = SLOW
    if sharding:
        each = -(-steps // sharding.size)
        facts["devices"] = f"{sharding.size} along {sharding.mesh_axis!r}, up to {each} steps each"
    facts["device"] = model.name
    return Plan(structure, linear, model, facts, forward, gradient)


def _without_doubt(
    candidates: list[Candidate], why: str, method: Method | None = None
) -> tuple[list[Candidate], str]:
    """The candidates, a loop that is surely faster than what "auto" takes before it; and why.

    ``method``: of the one to take, if it is known.
    """
    loops = [one for one in candidates if isinstance(one.method, Sequential)]
    best = min(
        (one for one in loops if method in (None, one.method)),
        key=lambda one: one.seconds,
        default=candidates[0],
    )
    if best.seconds * ERROR >= candidates[0].seconds:
        return candidates, why
    gain = _digits(candidates[0].seconds / best.seconds)
    rest = [one for one in candidates if one is not best]
    return [best, *rest], f'predicted {gain}x as fast as "auto", which takes {candidates[0].name}'


def _promise(forward: Sequence[Candidate], gradient: Sequence[Candidate], source: str) -> str:
    """The choice and its speedups, and what they rest on."""
    best = forward[0]
    text = f"{best.name}: {_digits(baseline(forward).seconds / best.seconds)}x"
    text += " if the chain forgets its past" if best.iterations and source == USUAL_CHAINS else ""
    if gradient:
        both = gradient[0]
        by, gain = both.name.partition(" / ")[2], baseline(gradient).seconds / both.seconds
        text += "; gradient " + (f"{_digits(gain)}x by {by}" if gain > 1 else f"by {by}")
    return text


def _predicted(instance: Instance, one: Candidate, device: depth.Device, number: int) -> Candidate:
    """The candidate with what ``device`` is predicted to take; Newton's method ``number`` trips."""
    platform = str(device.platform)
    with compiled_for(platform), expecting(number):
        jaxpr = jax.make_jaxpr(instance.program(one))(*instance.shapes)
        cost, _ = analyze_loops(jaxpr, {ITERATION: number})
    trips, time = number * isinstance(one.method, Newton), call_seconds(cost, device)
    return dataclasses.replace(one, cost=cost, seconds=time, iterations=trips)


def _sample(instance: Instance, method: Newton, block: int, shards: int) -> tuple[int, str]:
    """The iterations that the whole chain will take, by those on its first steps; and in words.

    No bound from shapes or from the growth rate predicts them: a chain that forgets may hold
    iterates in the wrong basin for hundreds of iterations, and a linear chain takes one, however it
    amplifies differences. So the method itself runs, where the arrays are.

    ``block``: the entries of the Jacobian blocks of one step.
    """
    chain, length = instance.chain, instance.traced.length
    steps = max(8, min(STEPS, SAMPLE_ENTRIES // max(1, block)))
    steps = min(length, -(-steps // shards) * shards)
    options: Any = {"atol": 0.0, "window": None, "memory": None, "fused": False, "progress": None}
    options |= {"max_iterations": MOST_ITERATIONS, "record": True, "on_failure": "return"}
    method = dataclasses.replace(method, **options)
    inputs = jax.tree.map(lambda x: jax.lax.slice_in_dim(jnp.asarray(x), 0, steps), chain.inputs)
    first = dataclasses.replace(chain, inputs=inputs, length=steps)
    stats = solve(first, instance.state, method=method, batch_ndim=instance.batch_ndim).stats
    iterations, prefix = int(stats.iterations), int(stats.prefix)
    rate = math.nan if stats.growth_rate is None else float(stats.growth_rate)
    times = length / max(1, prefix)
    # Differences decay to a tenth of the digits within the sample, so a longer chain takes a few
    # iterations more; any other chain takes more in proportion to its length.
    if prefix == steps and (steps == length or rate * steps < -math.log(1e3)):
        number = iterations + round(math.log2(times) / 2)
    else:
        number = math.ceil(iterations * times)
    source = "from the whole chain" if steps == length else f"from its first {steps} steps"
    if prefix < steps:
        source = f"{prefix} of {steps} states converge in {iterations} iterations"
    if not math.isnan(rate):
        source += f"; differences {'grow' if rate > 0 else 'decay'} at {rate:+.3g} a step"
    return min(max(1, number), length + 1), source
