"""Each operation of a kernel is that of XLA, also of numbers at the ends of their range.

A chain has the operands of a step for each pair of these numbers, and all operations as outputs.
What XLA computes from floating numbers is computed in float64, and rounded: those below the
smallest normal number are 0 for XLA on a CPU, in float32, but not on a GPU.
"""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import add_jaxvals_p

from deeppcr.lower.gpu.fused import FusedStep, nvrtc, operations
from deeppcr.lower.gpu.fused.kernel import kernel_of
from depth.jaxprs import Program, equations
from tests.fused.emulator import launch

SIZES = [0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.7, 20.0, 88.0, 120.0, 129.0, 255.5, 300.0, 4e4]
SIZES += [1e-8, 2.0**-24, 2.0**-14, 2.0**-126, 1e-40, 2.0**-149, 2.0**31, 2.0**32 + 2**10, 2.0**63]
SIZES += [2.0**64, 3e38, np.inf]
FLOATS = "float32", "float16", "bfloat16"
INTEGERS = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
ALL = *FLOATS, *INTEGERS, "bool"


def numbers(dtype):
    """Numbers at the ends of the range, and some between them."""
    dtype = jnp.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if jnp.issubdtype(dtype, jnp.floating):
        with np.errstate(over="ignore"):
            return np.array([sign * x for x in SIZES for sign in (1, -1)] + [np.nan]).astype(dtype)
    ends = jnp.iinfo(dtype)
    found = {0, 1, 2, 3, 7, 100, ends.bits - 1, ends.bits, ends.bits + 1, ends.max // 2}
    found |= {ends.max, ends.max - 1, ends.min, ends.min + 1}
    return np.array([*found, *(-x for x in found if 0 < x < 101 and ends.min)], dtype)


def pairs(dtype):
    known = numbers(dtype)
    return [x.ravel() for x in np.meshgrid(known, known, indexing="ij")]


def by_kernel(functions, *inputs, lanes=1):
    """What functions of the inputs of a step are, for all steps, by one kernel."""

    def step(z, *x):
        return [z * z.sum() if z.ndim else z, *(f(*x) for f in functions)]

    z = np.zeros(inputs[0].shape[1:], np.float32)
    closed = jax.make_jaxpr(step)(z, *(x[0] for x in inputs))
    fused = FusedStep.of(Program.of(closed), 1, ()).by(lanes)
    assert not fused.apart.first.eqns  # else XLA computes what does not depend on the state
    count = len(inputs[0])
    kinds = [((count, *x.aval.shape), x.aval.dtype) for x in fused.program.outvars]
    results = [jax.ShapeDtypeStruct(*kind) for kind in [*kinds, (z.shape, z.dtype)]]
    kernel = kernel_of(fused, count, False)
    return launch(kernel, results, *fused.read([z, *inputs]))[1:-1]


def by_xla(functions, *inputs):
    return jax.jit(jax.vmap(lambda *x: [f(*x) for f in functions]))(*inputs)


def agree(table, *inputs, wide=False):
    """``table``: functions by name, and the units in the last place that they may differ."""
    functions = [f for f, _ in table.values()]
    found = by_kernel(functions, *inputs)
    given = [x.astype(np.float64) for x in inputs] if wide else inputs
    expected = by_xla(functions, *given)
    for name, (_, units), ours, theirs in zip(table, table.values(), found, expected, strict=True):
        theirs = np.asarray(theirs)
        if wide and theirs.dtype == np.float64:
            with np.errstate(over="ignore"):
                theirs = theirs.astype(np.float32).astype(ours.dtype)
        if name in SUMS:
            ours, theirs = ours + ours.dtype.type(0), theirs + theirs.dtype.type(0)
        wrong = np.flatnonzero(~are_close(ours, theirs, units))
        cases = [(*(x[k] for x in inputs), ours[k], theirs[k]) for k in wrong[:3]]
        assert not cases, f"{name}: {len(wrong)} results, as {cases}"
        assert ours.dtype == theirs.dtype, name


def are_close(ours, theirs, units):
    """Where they are the same number, with its sign, or so many units in the last place away."""
    if not jnp.issubdtype(ours.dtype, jnp.floating):
        return ours == theirs
    of_type = jnp.finfo(ours.dtype)
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(all="ignore"):
        unit = np.exp2(np.floor(np.log2(np.abs(theirs)))) * float(of_type.eps)
        unit = np.maximum(unit, float(of_type.smallest_subnormal))
        near = np.abs(ours - theirs) <= unit * units
    same = (ours == theirs) & ((ours != 0) | (np.signbit(ours) == np.signbit(theirs)))
    return same | near & (theirs != 0) | np.isnan(ours) & np.isnan(theirs)


def of_first(f):
    return lambda x, y: f(x)


def entry(f):
    """A function of an array, of two entries."""
    return lambda x, y: f(jnp.stack([x, y, y]))


def cast(dtype):
    return of_first(lambda x: lax.convert_element_type(x, dtype))


EXACT = {  # of integers, and of floating numbers
    **{name: getattr(lax, name) for name in ["eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "div", "max", "min", "rem"]},
    **{name: of_first(getattr(lax, name)) for name in ("neg", "square", "sign")},
    "add_any": add_jaxvals_p.bind,
    "clamp": lambda x, y: lax.clamp(y, x, lax.full_like(x, 1)),
    "clamp from 0": lambda x, y: lax.clamp(lax.full_like(x, 0), x, y),
    "select": lambda x, y: lax.select_n(x < y, x, y),
    "select of 3": lambda x, y: lax.select_n((x < y).astype(np.int32) * 2, y, x, x),
    "iota": lambda x, y: x + lax.iota(x.dtype, 3)[2],
    "reduce_max": entry(lambda a: lax.reduce_max(a, (0,))),
    "reduce_min": entry(lambda a: lax.reduce_min(a, (0,))),
    "cummax": entry(lambda a: lax.cummax(a)[2]),
    "cummin": entry(lambda a: lax.cummin(a, reverse=True)[0]),
    **{f"to {dtype}": cast(dtype) for dtype in INTEGERS},
    "to bool": cast("bool"),
}  # fmt: skip
ROUNDED = {  # more than once
    **{f"power {k}": of_first(partial(lax.integer_pow, y=k)) for k in (0, 1, 2, 3, 7)},
    "reduce_sum": entry(lambda a: lax.reduce_sum(a, (0,))),
    "reduce_prod": entry(lambda a: lax.reduce_prod(a, (0,))),
    "cumsum": entry(lambda a: lax.cumsum(a)[2]),
    "cumprod": entry(lambda a: lax.cumprod(a)[2]),
    "products": lambda x, y: lax.dot(jnp.stack([x, y]), jnp.stack([y, x])),
}
SUMS = "reduce_sum", "cumsum", "products"  # the sign of a sum of zeros may depend on its start
LOGICAL = {
    "not": of_first(lax.bitwise_not),
    **{name: getattr(lax, f"bitwise_{name}") for name in ("and", "or", "xor")},
    "reduce_and": entry(lambda a: lax.reduce_and(a, (0,))),
    "reduce_or": entry(lambda a: lax.reduce_or(a, (0,))),
    "reduce_xor": entry(lambda a: lax.reduce_xor(a, (0,))),
}  # fmt: skip
SHIFTS = ("shift_left", "shift_right_logical", "shift_right_arithmetic")
OF_SIGNED = EXACT | {"abs": of_first(lax.abs)}
OF_FLOATS = OF_SIGNED | {
    name: of_first(getattr(lax, name)) for name in ("floor", "ceil", "is_finite", "sqrt")
}
NEAR = {name: of_first(getattr(lax, name)) for name in operations.OF_C.split()}
NEAR |= {"pow": lax.pow, "atan2": lax.atan2, "tanh": of_first(lax.tanh)}
if hasattr(lax, "one_minus_square_p"):
    NEAR |= {"one_minus_square": of_first(lax.one_minus_square_p.bind)}


def with_units(table, units=0):
    return {name: (f, units) for name, f in table.items()}


@pytest.mark.parametrize("dtype", FLOATS)
def test_floating_numbers(dtype):
    near = with_units(NEAR, 3 if dtype == "float32" else 1)
    agree(near | with_units(OF_FLOATS), *pairs(dtype), wide=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_rounded_more_than_once(dtype):
    """In the same order; of normal numbers."""
    x, y = pairs(dtype)
    sizes = np.abs(np.stack([x, y]).astype(np.float64))
    is_normal = ((sizes == 0) | ~np.isfinite(sizes) | (sizes > 1e-4) & (sizes < 1e5)).all(0)
    powers = {f"power {k}": of_first(partial(lax.integer_pow, y=k)) for k in (-5, -2, -1)}
    table = with_units(ROUNDED | powers, 2 if dtype == "float32" else 1)
    agree(table, x[is_normal], y[is_normal])


def test_logistic():
    """Its error grows with the operand, as that of an exponential function of a product."""
    x = np.concatenate([numbers("float32"), np.linspace(-87, 20, 3001, dtype=np.float32)])
    (found,) = by_kernel([lax.logistic], x)
    expected = np.asarray(jax.nn.sigmoid(x.astype(np.float64))).astype(np.float32)
    size = np.where(np.abs(x) < 100, np.abs(x), 0)
    is_tiny = (found < 2.0**-126) & (expected < 2.0**-126)  # which a GPU makes 0
    assert (are_close(found, expected, 12 + size) | is_tiny).all()


def test_tanh():
    x = np.concatenate([numbers("float32"), np.linspace(-10, 10, 5001, dtype=np.float32)])
    agree({"tanh": (lax.tanh, 4)}, x, wide=True)


@pytest.mark.parametrize("before", [*FLOATS, "float64"])
@pytest.mark.parametrize("after", FLOATS)
def test_casts_between_floating_numbers(before, after):
    x = np.concatenate([numbers(before), (1 + 2.0 ** -np.arange(1, 30) * 1.001).astype(before)])
    (found,) = by_kernel([lambda x: lax.convert_element_type(x, after)], x)
    with np.errstate(over="ignore"):
        assert are_close(found, x.astype(np.float32).astype(after), 0).all()


def test_float64_is_read():
    """And compared, and cast, not computed."""
    names = "eq", "lt", "ge", "is_finite", *(name for name in OF_FLOATS if name.startswith("to "))
    agree(with_units({name: OF_FLOATS[name] for name in names}), *pairs("float64"))


def as_literal(number, x):
    return x.dtype.type(number)


def literals(dtype):
    """Operations with numbers that are known, in place of one operand."""
    table = {}
    known = [0.0, -0.0, 1.0, np.inf, np.nan] if dtype in FLOATS else []
    if not known:
        ends = jnp.iinfo(dtype)
        known = [0, 1, ends.min, ends.max, ends.bits, *([-1] if ends.min else [])]
    names = (
        ["max", "min"] if dtype in FLOATS else ["add", "sub", "div", "rem", "max", "min", *SHIFTS]
    )
    for name, number in product(names, known):
        f, of_type = getattr(lax, name), partial(as_literal, number)
        table[f"{name} of {number}"] = lambda x, y, f=f, known=of_type: f(known(x), x)
        table[f"{name} by {number}"] = lambda x, y, f=f, known=of_type: f(x, known(x))
    return table


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype):
    exact = EXACT if dtype.startswith("u") else OF_SIGNED
    shifts = {name: getattr(lax, name) for name in SHIFTS}
    casts = {f"to {after}": cast(after) for after in FLOATS}
    agree(with_units(exact | ROUNDED | LOGICAL | shifts | casts | literals(dtype)), *pairs(dtype))


BOOLEANS = (
    *["eq", "ne", "lt", "le", "gt", "ge", "max", "min", "select", "reduce_max", "reduce_min"],
    "to bool",
    *LOGICAL,
)


def test_booleans():
    casts = {f"to {after}": cast(after) for after in ALL}
    table = {name: (EXACT | LOGICAL)[name] for name in BOOLEANS} | casts
    agree(with_units(table | {"products": ROUNDED["products"]}), *pairs("bool"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_floating_numbers_that_are_known(dtype):
    agree(with_units(literals(dtype)), *pairs(dtype), wide=True)


@pytest.mark.parametrize(
    ("dtype", "known"),
    [
        ("int64", [-(2**63), -1, 0, 7]),
        ("uint64", [2**63 + 5, 3, 0, 2**64 - 1]),
        ("int8", [-128, -1, 0, 7]),
        ("float32", [0.0, -0.0, np.nan, -np.inf]),
    ],
)
def test_each_lane_has_a_number_of_its_own(dtype, known):
    row = [np.dtype(dtype).type(x) for x in known]

    def of_lanes(x):
        known = jnp.stack([lax.full((), each) for each in row])
        return [f(x, known) for f in (lax.max, lax.min, lax.div, lax.sub, lax.rem)]

    functions = [lambda x, k=k: of_lanes(x)[k] for k in range(5)]
    x = np.repeat(numbers(dtype)[:, None], 4, 1)
    for ours, theirs in zip(by_kernel(functions, x, lanes=4), by_xla(functions, x), strict=True):
        is_tiny = np.abs(x.astype(np.float64)) < 2.0**-126 if dtype == "float32" else False
        assert (are_close(ours, np.asarray(theirs), 0) | is_tiny).all()


def test_lanes_cast_numbers_of_several_types():
    """Each by a statement of its own: a fraction is no integer on the way."""
    x = np.arange(8, dtype=np.int32).reshape(4, 2)
    y = np.linspace(0.1, 0.9, 8).reshape(4, 2)

    def both(x, y):
        return jnp.concatenate([x.astype(np.float32)[:1], y.astype(np.float32)[1:]])

    (found,) = by_kernel([both], x, y, lanes=2)
    np.testing.assert_array_equal(found, np.stack([x[:, 0], y[:, 1]], 1).astype(np.float32))


@pytest.mark.parametrize("before", ["int8", "uint8", "int32", "uint32"])
def test_products_of_integers_that_are_floating_numbers(before):
    def products(x, y):
        return lax.dot(jnp.stack([x, y]), jnp.stack([y, x]), preferred_element_type=np.float32)

    agree({"products": (products, 1)}, *pairs(before))


def test_all_of_the_table_is_tested():
    shifts = {name: getattr(lax, name) for name in SHIFTS}
    tables = {
        "float32": (operations.FLOATS, OF_FLOATS | NEAR | {"logistic": of_first(lax.logistic)}),
        "int8": (operations.SIGNED, OF_SIGNED | LOGICAL | shifts),
        "uint8": (operations.UNSIGNED, EXACT | LOGICAL | shifts),
        "bool": (operations.BOOLEAN, {name: (EXACT | LOGICAL)[name] for name in BOOLEANS}),
    }
    for dtype, (table, tested) in tables.items():
        x = jnp.ones((), dtype)
        closed = jax.make_jaxpr(lambda x, f=tested: [each(x, x) for each in f.values()])(x)
        names = {each.primitive.name for each in equations(Program.of(closed))}
        others = {"and", "or", "xor"} if dtype == "float32" else set()
        assert {*table, *operations.ANY} - others <= names | {"one_minus_square"}


def test_kernels_are_compiled_as_exactly_as_programs_of_xla():
    """Subnormal numbers are kept; quotients and roots are to 2 units in the last place."""
    assert nvrtc.COMPILER_OPTIONS == (b"--prec-div=false", b"--prec-sqrt=false")
