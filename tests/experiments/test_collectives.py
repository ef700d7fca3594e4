"""Collectives in compiled programs: how many of each kind, and their bytes."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from experiments.sharding.collectives import Sent, bytes_of, collectives

ALONG = P("i")


def text_of(function, x, out=ALONG) -> str:
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P("i"), out_specs=out, check_vma=False)
    return jax.jit(mapped).lower(x).compile().as_text()


X = jnp.zeros((16, 3), jnp.float32)  # two rows on each device: 24 bytes
SHIFT = [(k, (k + 1) % 8) for k in range(8)]


@pytest.mark.parametrize(
    ("function", "out", "expected"),
    [
        (lambda x: lax.psum(x, "i"), P(), {"all-reduce": Sent(1, 24)}),
        (lambda x: lax.all_gather(x, "i"), P(), {"all-gather": Sent(1, 8 * 24)}),
        (lambda x: lax.ppermute(x, "i", SHIFT), P("i"), {"collective-permute": Sent(1, 24)}),
        (lambda x: lax.psum(x.sum(), "i"), P(), {"all-reduce": Sent(1, 4)}),
        (lambda x: x + 1, P("i"), {}),
    ],
)
def test_one_of_a_kind(function, out, expected) -> None:
    assert collectives(text_of(function, X, out)) == expected


def test_two_kinds_that_wait_for_one_another() -> None:
    def program(x):
        x = lax.ppermute(x, "i", SHIFT)
        x = lax.ppermute(jnp.sin(x), "i", SHIFT)
        return lax.psum(jnp.cos(x), "i")

    assert collectives(text_of(program, X, P())) == {
        "all-reduce": Sent(1, 24),
        "collective-permute": Sent(2, 48),
    }


def test_rows_are_exchanged_and_scattered() -> None:
    exchanged = text_of(
        lambda x: lax.all_to_all(x, "i", 1, 0), jnp.zeros((8, 8), jnp.float32), P("i")
    )
    assert collectives(exchanged) == {"all-to-all": Sent(1, 32)}
    scattered = text_of(
        lambda x: lax.psum_scatter(x, "i", tiled=True), jnp.zeros((64, 3), jnp.float32)
    )
    assert collectives(scattered) == {"reduce-scatter": Sent(1, 12)}


def test_a_dtype_counts_with_its_size() -> None:
    assert collectives(text_of(lambda x: lax.ppermute(x, "i", SHIFT), X.astype(jnp.float64))) == {
        "collective-permute": Sent(1, 48)
    }
    assert collectives(text_of(lambda x: lax.ppermute(x, "i", SHIFT), X.astype(bool))) == {
        "collective-permute": Sent(1, 6)
    }


def test_the_body_of_a_loop_counts_once() -> None:
    loop = text_of(
        lambda x: lax.fori_loop(0, 5, lambda _, x: lax.ppermute(jnp.sin(x), "i", SHIFT), x), X
    )
    assert collectives(loop) == {"collective-permute": Sent(1, 24)}


def test_what_starts_and_is_done_later_counts_once() -> None:
    # As XLA writes it for GPUs and TPUs; on a CPU nothing starts early.
    text = """
  %all-reduce-start = f32[6]{0} all-reduce-start(%p), channel_id=1, to_apply=%add
  %all-reduce-done = f32[6]{0} all-reduce-done(%all-reduce-start)
  %ag = (f32[1,3]{1,0}, f32[8,3]{1,0:T(8,128)}) all-gather-start(%q), dimensions={0}
  %agd = f32[8,3]{1,0} all-gather-done(%ag)
  %both = ((f32[3]{0}, s32[]), (f32[24]{0}, s32[8]{0})) all-gather-start(%q, %r), dimensions={0}
  ROOT %cp = (bf16[4,2]{1,0}, bf16[4,2]{1,0}, u32[], u32[]) collective-permute-start(%s), channel_id=3
"""
    found = {
        "all-reduce": Sent(1, 24),
        "all-gather": Sent(2, 96 + 96 + 32),
        "collective-permute": Sent(1, 16),
    }
    assert collectives(text) == found


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[]", 4),
        ("f32[4,1,4]{2,1,0}", 64),
        ("(f32[2]{0}, pred[3]{0}, token[])", 11),
        ("c128[2]", 32),
        ("s4[3]", 2),
        ("f8e4m3fn[5]", 5),
    ],
)
def test_bytes_of_a_shape(shape, expected) -> None:
    assert bytes_of(shape) == expected
