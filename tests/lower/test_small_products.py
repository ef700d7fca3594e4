"""Products written out as sums are the products, whatever their dimensions and dtypes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.lower.cpu.products import is_small_product, write_out
from deeppcr.lower.gpu.short_vectors import short_vectors
from deeppcr.programs.cut_first import evaluate
from tests.problems import assert_agree, normal, rounding

SIZES = {"a": 2, "b": 3, "i": 4, "j": 1, "k": 5, "l": 8}
EINSUMS = [
    *("i,ik->k", "ik,k->i", "k,k->", "i,k->ik", "ik,ik->", "bi,ik->bk", "ik,bk->bi"),
    *("bik,bkl->bil", "bik,kb->ib", "abi,il->abl", "ikl,kl->i", "ikl,lk->i", "bij,bjk->bik"),
    *("abik,abkl->abil", "kil,bki->bl", "jj,jk->k"),
]


def arrays(spec, dtype):
    left, right = spec.partition("->")[0].split(",")
    return [
        np.asarray(normal(n, *(SIZES[axis] for axis in axes))).astype(dtype)
        for n, axes in enumerate((left, right))
    ]


def written_out(f, *arguments):
    closed = jax.make_jaxpr(f)(*arguments)
    jaxpr = getattr(closed, "jaxpr", closed)
    variables = [*jaxpr.constvars, *jaxpr.invars]

    def program(*arguments):
        known = dict(zip(variables, [*closed.consts, *arguments], strict=True))
        found = evaluate(jaxpr, known, jaxpr.outvars, write_out)
        return found if len(found) > 1 else found[0]

    if jax.default_backend() == "cpu":
        assert "dot_general" not in str(jax.make_jaxpr(program)(*arguments))
    return program(*arguments)


def test_any_dimensions():
    operands = {spec: arrays(spec, jnp.float64) for spec in EINSUMS}

    def every(of):
        program = {spec: partial(of, partial(jnp.einsum, spec)) for spec in EINSUMS}
        return jax.jit(lambda given: {spec: program[spec](*given[spec]) for spec in given})(
            operands
        )

    assert_agree(every(written_out), every(lambda f, *arguments: f(*arguments)))


def both_ways(f, *arguments):
    """Written out, and as it is; by one program."""
    return jax.jit(lambda *given: (written_out(f, *given), f(*given)))(*arguments)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_narrow_types(dtype):
    def matmuls(a, b):
        return jnp.matmul(a, b), jnp.matmul(a, b, preferred_element_type=jnp.float32)

    found, expected = both_ways(matmuls, *arrays("bi,ik->bk", dtype))
    assert_agree(tuple(found), expected, rounding(dtype, 2 * SIZES["i"]))


def test_products_inside_of_calls():
    weight = normal(3, 4, 4)
    inner = jax.jit(lambda z: jax.checkpoint(lambda z: jax.nn.relu(z @ weight))(z) @ weight)
    assert_agree(*both_ways(inner, normal(0, 4)))


def test_long_sums_and_short_rows():
    """Sums in pieces, whole and not; rows that XLA does not vectorise are written out if small."""
    shapes = [(2, 16, 24), (1, 17, 8), (3, 40, 4), (3, 9, 12)]
    pairs = [(normal(0, m, k), normal(1, k, n)) for m, k, n in shapes]
    written, plain = both_ways(
        lambda *flat: [a @ b for a, b in zip(flat[::2], flat[1::2], strict=True)],
        *[x for pair in pairs for x in pair],
    )
    assert_agree(list(written), plain)


def at_once(spec):
    """A product as it is where many steps are evaluated at once."""

    def program(*given):
        closed = jax.make_jaxpr(jax.jit(partial(jnp.einsum, spec)))(*given)
        return short_vectors(closed, given)[0]

    return program


@pytest.mark.parametrize(
    ("size", "by_rows", "by_columns"), [(16, True, True), (24, False, True), (32, False, False)]
)
def test_of_products_with_one_vector_the_smallest_are_sums(size, by_rows, by_columns):
    matrix, vector = normal(0, size, size), normal(1, size)
    for pair, writes in (((matrix, vector), by_rows), ((vector, matrix), by_columns)):
        (product,) = jax.make_jaxpr(jax.lax.dot)(*pair).eqns
        assert is_small_product(product) == writes


@pytest.mark.parametrize(
    ("spec", "writes"),
    [
        *((spec, True) for spec in ("bik,bk->bi", "ib,bil->bl", "bai,bail->bal", "bk,bk->b")),
        *((spec, True) for spec in ("kbj,bki->bji", "bji,kbi->bjk", "bli,bi->bl")),
        *((spec, False) for spec in ("bi,ik->bk", "bik,bkl->bil", "ik,k->i", "bik,bik->b")),
    ],
)
def test_products_of_vectors_at_once(spec, writes):
    operands = arrays(spec, jnp.float64)
    text = str(jax.make_jaxpr(at_once(spec))(*operands))
    assert ("dot_general" in text) != writes
    assert_agree(jax.jit(at_once(spec))(*operands), np.einsum(spec, *operands))
