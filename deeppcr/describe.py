"""What Newton's method would do with a chain, and why, before anything runs."""

import dataclasses
from typing import Any

import jax

from deeppcr.api import vector_batch
from deeppcr.axis import ChainSharding
from deeppcr.chain import Chain, chain_length
from deeppcr.layers import Description as LayersFound
from deeppcr.layers import describe as describe_layers
from deeppcr.layers import stack_layers
from deeppcr.linearize import Choice, choose_linearization
from deeppcr.newton import Newton
from deeppcr.plan import find_method
from deeppcr.sharding import find_sharding
from deeppcr.state import StateLayout, check_state
from deeppcr.step import trace
from deeppcr.structure import Structure, find_structure


@dataclasses.dataclass(frozen=True)
class ChainFound:
    """One chain; printed, in a few lines.

    Attributes:
        length: L.
        layout: of its state.
        structure: which entries of the state influence each other, as its program proves.
        choice: the linearisation, the window and why.
        nbytes: of all Jacobian blocks in a window.
        spread: the devices that share it; None if it is on one.
    """

    length: int
    layout: StateLayout
    structure: Structure
    choice: Choice
    nbytes: int
    spread: ChainSharding | None = None

    def __str__(self) -> str:
        examples = f", {self.layout.batch_size} examples" if self.layout.batch_shape else ""
        exact = (
            "exact: Newton's method" if self.choice.is_exact else "not exact: a quasi-Newton method"
        )
        window = (
            "all steps at once"
            if self.choice.window == self.length
            else f"{self.choice.window} steps at once"
        )
        dense = (
            self.length * self.layout.width**2 * self.layout.batch_size * self.layout.dtype.itemsize
        )
        rows = {
            "chain": f"{self.length} steps, a state of {self.layout.width} entries{examples}",
            "structure": str(self.structure),
            "linearize": f"{self.choice.linearization} ({exact})",
            "blocks": f"{self.nbytes:,} bytes; full Jacobians of all steps: {dense:,}",
            "window": window,
        }
        if self.spread:
            each = -(-self.length // self.spread.size)
            rows["devices"] = (
                f"{self.spread.size} along {self.spread.mesh_axis!r}, up to {each} steps on each"
            )
        if self.choice.reason:
            rows["because"] = self.choice.reason
        return "\n".join(f"{name:<9}  {text}" for name, text in rows.items())


@dataclasses.dataclass(frozen=True)
class Description:
    """What was found: ``layers``, if there are any, and ``chains``."""

    layers: LayersFound | None
    chains: tuple[ChainFound, ...]

    def __str__(self) -> str:
        parts = [] if self.layers is None else [str(self.layers)]
        return "\n\n".join([*parts, *map(str, self.chains)])


def describe(
    chain: Any, x: Any, *, method: str | Newton = "newton", batch_ndim: int | None = None
) -> Description:
    """What ``method`` would do with a chain or with layers, and why: the Jacobian's structure, the linearisation, the window.

    Args:
        chain: a `Chain`, or layers as in `deeppcr.forward`.
        x: the initial state, or what the first layer takes: arrays, or `jax.ShapeDtypeStruct`.
        method: a `Newton` object, or the name of one.
        batch_ndim: leading batch axes of the state; None for 0 for a `Chain`, and for layers as in `deeppcr.forward`.

    Returns:
        a `Description`; printed, a few lines for each chain.

    Example:
        >>> decay = deeppcr.Chain(lambda z, x: 0.5 * jnp.tanh(z) + x, jnp.zeros((3000, 512)))
        >>> print(deeppcr.describe(decay, jnp.zeros(512)))
        chain      3000 steps, a state of 512 entries
        structure  elementwise: no entry of the state reaches another
        linearize  diagonal (exact: Newton's method)
        blocks     6,144,000 bytes; full Jacobians of all steps: 3,145,728,000
        window     all steps at once
    """
    chosen = find_method(method)
    if not isinstance(chosen, Newton):
        raise ValueError(
            f"method is {method!r}, expected Newton(...) or the name of such a method: others do not linearise."
        )
    layers, chains = chains_of(chain, x, batch_ndim)
    return Description(
        layers, tuple(_found(chain, state, chosen, examples) for chain, state, examples in chains)
    )


def chains_of(
    chain: Any, x: Any, batch_ndim: int | None
) -> tuple[LayersFound | None, list[tuple[Chain, Any, int]]]:
    """What is known of layers, if these are any; and every chain with its initial state and its number of batch axes.

    The state of a chain that follows on other layers is made of shapes.
    """
    if isinstance(chain, Chain):
        return None, [(chain, x, batch_ndim or 0)]
    layers, chains = describe_layers(chain, x), []
    for place, segment in enumerate(layers.segments):
        if not segment.reason:
            run = stack_layers(segment.layers, segment.period)
            tree, *types = segment.layers[0].takes
            state = jax.tree.unflatten(
                tree, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in types]
            )
            state = x if place == 0 else state
            examples = vector_batch(state) if batch_ndim is None else batch_ndim
            chains.append((Chain(run.step, run.inputs, run.length), state, examples))
    return layers, chains


def _found(chain: Chain, state: Any, newton: Newton, batch_ndim: int) -> ChainFound:
    def shapes(tree: Any, axis: int) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[axis:], x.dtype), tree)

    length = chain_length(chain.inputs, chain.length, "chain.inputs")
    state = shapes(jax.eval_shape(lambda z: z, state), 0)
    check_state(state, batch_ndim, "x")
    step, _ = trace(lambda z, x: (chain.step(z, x), None), state, shapes(chain.inputs, 1))
    layout = StateLayout.of(jax.tree.leaves(state), batch_ndim)
    spread = find_sharding(chain.inputs, chain.sharding, newton)
    part = -(-length // spread.size) if spread else length
    choice = choose_linearization(
        newton.linearize, step, layout, part, newton.window, newton.memory, length
    )
    choice = dataclasses.replace(choice, window=length) if spread else choice
    nbytes = choice.window * choice.linearization.bytes_per_step(step, layout)
    return ChainFound(length, layout, find_structure(step, layout), choice, nbytes, spread)
