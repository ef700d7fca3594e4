"""A chain over P devices: a P-th of the memory each, messages that do not grow with the chain."""

import math
import re
from functools import cache

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

import deeppcr
from deeppcr import Chain, Newton, Sharded
from deeppcr.linear import Matrices
from deeppcr.loops import CORRECTION, FALLBACK, REPAIR
from deeppcr.sharding import shard
from tests.linear.loop import compiled
from tests.sharding.meshes import DEVICES, P, mesh

W, BATCH = 16, 8
KINDS = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
MESSAGE = re.compile(rf"= (.*?) ({KINDS})(?:-start)?\(")
ARRAY = re.compile(r"\b[a-z]+(\d*)\[([\d,]*)\]")


def messages(program, fallback=True):
    """The messages between devices that stand in a compiled program: kinds and bytes, sorted.

    ``fallback``: with those of the sequential loops, of which most programs make no trip.
    """
    found = []
    lines = [
        line
        for line in program.as_text().splitlines()
        if fallback
        or not any(f"/{name}, 0 trips" in line for name in (CORRECTION, FALLBACK, REPAIR))
    ]
    for shapes, kind in MESSAGE.findall("\n".join(lines)):
        arrays = [
            (int(bits or 8), map(int, dims.split(",") if dims else []))
            for bits, dims in ARRAY.findall(shapes)
        ]
        found.append((kind, sum(bits // 8 * math.prod(dims) for bits, dims in arrays)))
    return sorted(found)


def layer(z, x):
    weight, bias = x
    return z + 0.5 * jnp.tanh(z @ weight + jnp.broadcast_to(bias, z.shape))


@cache
def training(length, devices):
    """A step of gradient descent, compiled for one device or for several."""
    method, adjoint = Newton(linearize="dense"), "pcr"
    on = mesh(chain=devices)
    along, whole = (NamedSharding(on, spec) for spec in (P("chain"), P()))

    def loss(params, z0):
        chain = shard(Chain(layer, params), on) if devices > 1 else Chain(layer, params)
        return (
            deeppcr.solve(chain, z0, method=method, adjoint=adjoint, batch_ndim=1).value ** 2
        ).mean()

    def step(params, z0):
        value, gradients = jax.value_and_grad(loss)(params, z0)
        return value, jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((length, W, W), (length, W))]
    program = compiled(step, in_shardings=(along, whole), out_shardings=(whole, along))
    return program.lower(shapes, jax.ShapeDtypeStruct((BATCH, W), jnp.float64)).compile()


def bytes_on_each_device(program):
    memory = program.memory_analysis()
    return memory.temp_size_in_bytes + memory.argument_size_in_bytes


def test_each_device_holds_a_shard_of_everything():
    """As much as for half the chain on half the devices."""
    there, of_half = (
        bytes_on_each_device(training(length, devices))
        for length, devices in ((512, DEVICES), (256, DEVICES // 2))
    )
    assert there <= 1.1 * of_half


def test_messages_do_not_grow_with_the_chain():
    sent = messages(training(512, DEVICES))
    assert sent
    assert sent == messages(training(1024, DEVICES))
    block = BATCH * W * W * 8
    assert (
        max(size for _, size in sent) <= block
    )  # the summary of a shard, or the state of every device


def test_a_linear_recurrence_sends_as_often_as_the_devices_double():
    def sent(devices):
        by = Sharded(mesh(chain=devices), "chain")
        along = NamedSharding(by.mesh, P("chain"))
        solve = jax.jit(
            lambda A, b: by.solve(Matrices(A), b), in_shardings=(along, along), out_shardings=along
        )
        shapes = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((64, W, W), (64, W)))
        return messages(solve.lower(*shapes).compile(), fallback=False)

    # A vector in each round, a block in each but the last; at the end the state that enters the
    # next shard. For the residual the last state again, twice, and how large entries are on the
    # chain, and the number of steps that are right.
    for rounds in (1, 2, 3):
        sizes = [8 * W] * (rounds + 3) + [8 * W * W] * (rounds - 1)
        assert sent(2**rounds) == [
            *(("all-reduce", size) for size in (4, 8 * W)),
            *(("collective-permute", size) for size in sizes),
        ]


def test_a_reversed_chain_sends_what_a_chain_forwards_sends_and_no_input():
    length, on = 32 * DEVICES, mesh()
    along, whole = (NamedSharding(on, spec) for spec in (P("chain"), P()))

    def sent(reverse):
        def loss(z0, xs, weight):
            def step(z, x):
                z = jnp.tanh(weight @ z + x)
                return z, z * x

            method = Newton(linear=Sharded(on, "chain"))
            last, ys = deeppcr.scan(step, z0, xs, reverse=reverse, method=method)
            return last.sum() + (ys**2).sum(), ys

        program = compiled(
            jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True),
            in_shardings=(whole, along, whole),
            out_shardings=((whole, along), (whole, along, whole)),
        )
        shapes = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((3,), (length, 3), (3, 3)))
        return messages(program.lower(*shapes).compile())

    backwards = sent(True)
    assert backwards == sent(False)
    assert max(size for _, size in backwards) < length // DEVICES * 3 * 8  # a shard of the inputs
