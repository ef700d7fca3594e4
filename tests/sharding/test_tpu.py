"""A sharded chain, compiled for TPUs that are not there, where jax has the library of TPUs."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import deeppcr
from deeppcr.loops import ITERATION
from deeppcr.sharding import ChainSharding
from experiments.bench.costs import in_scope
from experiments.kernels import cycles
from tests.fused.test_kernel import gru
from tests.targets import target_or_skip

LENGTH = 1 << 14
LANES = 128  # of a vector register: neighbours along the innermost axis


@pytest.fixture(scope="module")
def tpu():
    return target_or_skip("TPU v5e")


def iteration(tpu, count):
    """The compiled solve of a GRU on ``count`` devices, and the cycles of its iteration."""
    mesh = jax.sharding.Mesh(np.array(tpu.devices[:count]), ("chain",))
    sharding = ChainSharding(mesh=mesh, mesh_axis="chain") if count > 1 else None

    def solve(inputs, start):
        chain = dataclasses.replace(deeppcr.Chain(gru(1), inputs), sharding=sharding)
        return deeppcr.solve(chain, start, method="newton").trajectory

    def shape(spec, *sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=NamedSharding(mesh, spec))

    with tpu.chosen():
        lowered = jax.jit(solve).lower(shape(P("chain"), LENGTH, 2), shape(P(), 1))
    program = cycles.read(lowered.compile().as_text())
    return program, program.trip(lambda name: in_scope(name, ITERATION))


def sparse(program, size):
    """Arrays of at least ``size`` entries in loops, with one entry in each row of lanes."""
    lines = [line for lines in program.computations.values() for line in lines]
    bodies = {name for line in lines for name in re.findall(r"while.*body=%?([\w.\-]+)", line)}
    found = []
    for line in (line for name in bodies for line in program.computations[name]):
        if laid_out := re.search(r" = \w+\[([\d,]+)\]\{(\d+)", line):
            sizes = [int(number) for number in laid_out[1].split(",")]
            if sizes[int(laid_out[2])] == 1 and max(sizes) >= max(size, LANES):
                found.append(line)
    return found


def test_sparse_arrays_are_found():
    shape = "%x = f32[4096,1]{{{},{}:T(8,128)}} fusion(%p)".format
    entry = ["%known = (s32[]) while(%x), condition=%c, body=%b", shape(1, 0)]
    computations = {"main": entry, "b": [shape(1, 0), shape(0, 1)], "c": []}
    assert sparse(cycles.Program(computations, "main"), 1024) == [shape(1, 0)]


def test_the_chain_lies_on_the_lanes_and_a_shard_takes_less_than_the_chain(tpu):
    whole, shard = (iteration(tpu, count) for count in (1, 4))
    assert sparse(shard[0], LENGTH // 8) == []
    assert 0 < shard[1] < whole[1]
