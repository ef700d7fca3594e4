"""What the layers of random programs are made of: each kind is a definition and a line of Python.

``{w}`` is the layer's own matrix [3, 3], ``{k}`` its index in the list.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of layer.

    Attributes:
        text: the layer.
        defines: what comes before, once for all.
        begins: what is made anew before each run: state that several layers share.
        leaves: what is compared when the layers have run.
        is_stateful: whether an error in words is an answer, too.
        has_effect: whether it does something that `jax.jit` keeps.
    """

    text: str
    defines: str = ""
    begins: str = ""
    leaves: str = ""
    is_stateful: bool = False
    has_effect: bool = False


AFFINE = "def affine(w, x):\n    return jnp.tanh(x @ w)\n"
CLOSURE = "def closure(w):\n    return lambda x: jnp.sin(x @ w)\n"
PLAIN = """\
class Plain:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return jnp.tanh(x @ self.w)
"""
DENSE = """\
@partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["name"])
@dataclasses.dataclass(frozen=True)
class Dense:
    w: jax.Array
    name: str = "tanh"

    def __call__(self, x):
        return getattr(jnp, self.name)(x @ self.w)
"""
CHOOSY = """\
def choosy(a):
    return lambda x: jnp.sin(x * (2.0 if isinstance(a, np.ndarray) else 3.0) + a.sum())
"""
SCALED = "def scaled(c, x):\n    return jnp.sin(x * c.number)\n"
LIAR = """\
class Liar:
    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return isinstance(other, Liar)

    def __hash__(self):
        return 0
"""
HIDDEN = """\
@dataclasses.dataclass(frozen=True)
class Hidden:
    number: float = dataclasses.field(compare=False)
"""
STATIC = """\
@partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["c"])
@dataclasses.dataclass(frozen=True)
class Static:
    w: jax.Array
    c: object

    def __call__(self, x):
        return jnp.sin(x @ self.w * self.c.number)
"""
WRAPPED = """\
class Doubled:
    def __init__(self, function):
        self.__wrapped__ = function

    def __call__(self, x):
        return 2.0 * self.__wrapped__(x)

    def lower(self, *args):
        return jax.jit(self.__call__).lower(*args)
"""
DECORATED = """\
def doubled(function):
    @functools.wraps(function)
    def call(x):
        return 2.0 * function(x)

    return call
"""
COUNTER = """\
class Counter:
    count = 0

    def next(self):
        self.count += 1
        return self.count


def counting(counter, w):
    return lambda x: jnp.sin(x @ w) * (1.0 + 0.1 * counter.next())


class Counting(Counter):
    def __call__(self, x):
        return x * (1.0 + 0.1 * self.next())
"""
WRITER = """\
def writing(settings):
    def layer(x):
        settings["scale"] = 0.7 * settings["scale"]
        return jnp.sin(x)

    return layer


def reading(settings, w):
    return lambda x: jnp.tanh(x @ w) * settings["scale"]
"""
NOISE = "def noisy(noise):\n    return lambda x: x + 0.1 * noise.normal()\n"
MEMORY = """\
def remembering():
    def layer(x, memory=[0]):
        memory[0] += 1
        return x * (1.0 + 0.1 * memory[0])

    return layer
"""
LOGGED = """\
def logged(x):
    jax.debug.callback(seen.append, x.reshape(-1)[0], ordered=True)
    return jnp.sin(x)
"""
TRACING = """\
def tracing(trace):
    def layer(x):
        trace.append(1.0)
        return x * (1.0 + 0.1 * len(trace))

    return layer
"""
OWN = """\
@jax.custom_jvp
def straight(w, x):
    return jnp.round(x @ w)


@straight.defjvp
def straight_rule(primals, tangents):
    (w, x), (dw, dx) = primals, tangents
    return straight(w, x), x @ dw + dx @ w
"""
CLIPPED = """\
@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.37, 0.23),))
"""
NNX = "from flax import nnx\n"
RNGS = "    rngs = nnx.Rngs(0)\n"
MODULE = """\
import equinox as eqx


class Module(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        return jnp.tanh(x @ self.w)
"""
SETTINGS, COUNT, GENERATOR, TRACE = (
    "    settings = {'scale': 1.0}\n",
    "    counter = Counter()\n",
    "    noise = np.random.default_rng(3)\n",
    "    trace = []\n",
)

KINDS = {
    "lambda": Kind("lambda x, w={w}: jnp.sin(x @ w)"),
    "closure": Kind("closure({w})", CLOSURE),
    "Partial": Kind("jax.tree_util.Partial(affine, {w})", AFFINE),
    "partial": Kind("partial(affine, {w})", AFFINE),
    "pair": Kind("(affine, {w})", AFFINE),
    "object": Kind("Plain({w})", PLAIN),
    "method": Kind("Plain({w}).__call__", PLAIN),
    "pytree": Kind("Dense({w})", DENSE),
    "another pytree": Kind('Dense({w}, "sin")', DENSE),
    "jitted": Kind("jax.jit(closure({w}))", CLOSURE),
    "checkpoint": Kind("jax.checkpoint(closure({w}))", CLOSURE),
    "equinox": Kind("Module({w})", MODULE),
    "function": Kind("jnp.tanh"),
    "number": Kind("lambda x, c=0.5 + 0.1 * {k}: jnp.sin(c * x)"),
    "index": Kind("lambda x, i={k} % 3: x.at[..., i].set(0.5)"),
    "numpy": Kind("choosy(np.cos(np.arange(3) + {k}).astype(F))", CHOOSY),
    "liar": Kind("partial(scaled, Liar(0.5 + 0.1 * {k}))", SCALED + "\n\n" + LIAR),
    "hidden": Kind("partial(scaled, Hidden(0.5 + 0.1 * {k}))", SCALED + "\n\n" + HIDDEN),
    "static liar": Kind("Static({w}, Liar(0.5 + 0.1 * {k}))", STATIC + "\n\n" + LIAR),
    "static hidden": Kind("Static({w}, Hidden(0.5 + 0.1 * {k}))", STATIC + "\n\n" + HIDDEN),
    "wrapped": Kind("Doubled(closure({w}))", CLOSURE + "\n\n" + WRAPPED),
    "decorated": Kind("doubled(closure({w}))", CLOSURE + "\n\n" + DECORATED),
    "straight through": Kind("partial(straight, {w})", OWN),
    "clipped": Kind("clipped", CLIPPED),
    "counter": Kind("counting(counter, {w})", COUNTER, COUNT, "counter.count", is_stateful=True),
    "own counter": Kind("Counting()", COUNTER, is_stateful=True),
    "writer": Kind("writing(settings)", WRITER, SETTINGS, 'settings["scale"]', is_stateful=True),
    "reader": Kind(
        "reading(settings, {w})", WRITER, SETTINGS, 'settings["scale"]', is_stateful=True
    ),
    "noise": Kind("noisy(noise)", NOISE, GENERATOR, "noise.normal()", is_stateful=True),
    "memory": Kind("remembering()", MEMORY, is_stateful=True),
    "list": Kind("tracing(trace)", TRACING, TRACE, "len(trace)", is_stateful=True),
    "logged": Kind("logged", LOGGED, has_effect=True),
    "nnx.Linear": Kind("nnx.Linear(3, 3, dtype=F, param_dtype=F, rngs=rngs)", NNX, RNGS),
    "nnx.LayerNorm": Kind("nnx.LayerNorm(3, dtype=F, param_dtype=F, rngs=rngs)", NNX, RNGS),
    "nnx.Dropout": Kind(
        "nnx.Dropout(0.4, rngs=rngs)", NNX, RNGS, "rngs.dropout.count[...]", is_stateful=True
    ),
    "nnx.BatchNorm": Kind(
        "norm",
        NNX,
        RNGS + "    norm = nnx.BatchNorm(3, dtype=F, param_dtype=F, rngs=rngs)\n",
        "norm.mean[...]",
    ),
}
QUIET = [name for name, kind in KINDS.items() if not kind.is_stateful and not kind.has_effect]
