"""Trials are kept by device and by the chain's signature, "auto" takes what was fastest, and no file can do any harm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.adjoint import Backpropagation
from deeppcr.plan.choose import choose_adjoint, choose_method
from deeppcr.plan.trials import read_trials, trials_file, write_trials
from tests.plan.chains import CHAINS, elementwise, like, pieces_of

CHAIN, Z0 = CHAINS["elementwise"]
NEWTON = "Newton, diagonal, sequential"
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def pieces(memo):
    return pieces_of(CHAIN, Z0)


# -- tried ----------------------------------------------------------------------------------------------------------------------


def test_what_is_tried_is_kept_and_taken(folder, memo, monkeypatch):
    monkeypatch.setattr(sys.modules["deeppcr.planner"], "TRIAL", 0.002)
    found = deeppcr.plan(CHAIN, Z0, trials=True)
    path = trials_file(pieces_of(CHAIN, Z0), "cpu")
    assert path.is_relative_to(folder / "deeppcr")
    kept = json.loads(path.read_text())
    measured = {
        c.name: c.measured
        for c in (*found.main.forward, *found.main.gradient)
        if c.measured is not None
    }
    assert kept == measured
    assert 3 < len(kept) <= 6
    assert all(0 < seconds < 10 for seconds in kept.values())
    for candidates in (found.main.forward, found.main.gradient):
        times = [candidate.measured for candidate in candidates if candidate.measured is not None]
        assert candidates[0].measured is not None
        assert len(times) == min(3, len(candidates))
    assert "measured" in str(found).splitlines()[2]
    assert deeppcr.plan(CHAIN, Z0).to_json() == found.to_json()
    assert choose_method(pieces_of(CHAIN, Z0), "cpu") == found.method
    assert "measured" not in str(deeppcr.plan(CHAIN, Z0, device="H200"))  # they are of this device


@pytest.mark.parametrize("arguments", [{"device": "H200"}, {"device": "cpu"}], ids=str)
def test_trials_of_another_device_are_refused(arguments):
    with pytest.raises(ValueError, match="device is") as error:
        deeppcr.plan(CHAIN, Z0, trials=True, **arguments)
    assert repr(arguments["device"]) in str(error.value)


def test_trials_need_arrays(folder):
    with pytest.raises(ValueError, match=r"x is made of shapes .* trials=True"):
        deeppcr.plan(*like(), trials=True)
    assert not list(folder.iterdir())


# -- taken ----------------------------------------------------------------------------------------------------------------------


def test_the_fastest_tried_is_taken(pieces):
    assert isinstance(choose_method(pieces, "cpu"), deeppcr.Sequential)
    write_trials(
        pieces,
        "cpu",
        {
            "sequential": 2.0,
            NEWTON: 1.0,
            f"{NEWTON} / step by step": 0.5,
            "sequential / autodiff": 3.0,
        },
    )
    method = choose_method(pieces, "cpu")
    assert isinstance(method, deeppcr.Newton)
    assert method.linear == deeppcr.Recurrence()
    assert choose_adjoint(pieces, None, "cpu") == Backpropagation()
    write_trials(pieces, "cpu", {"sequential": 0.1})  # beside the others
    assert choose_method(pieces, "cpu") == deeppcr.Sequential()
    assert read_trials(pieces, "cpu") == {
        "sequential": 0.1,
        NEWTON: 1.0,
        f"{NEWTON} / step by step": 0.5,
        "sequential / autodiff": 3.0,
    }


def test_the_fastest_tried_is_taken_however_small_the_gain(pieces):
    write_trials(pieces, "cpu", {"sequential": 1.0, NEWTON: 0.9})
    assert isinstance(choose_method(pieces, "cpu"), deeppcr.Newton)


def test_the_fastest_tried_is_taken_however_slow_it_was_predicted(memo):
    wide = pieces_of(*like())
    write_trials(wide, "cpu", {"sequential": 2.0, NEWTON: 1.0})
    assert isinstance(choose_method(wide, "cpu"), deeppcr.Newton)


def test_scan_takes_the_fastest_tried(pieces):
    def program():
        return str(jax.make_jaxpr(lambda z: deeppcr.solve(CHAIN, z).value)(Z0))

    before = program()
    write_trials(pieces, None, {"sequential": 2.0, NEWTON: 1.0})
    assert "while[" in program()
    assert "while[" not in before


def test_speedups_compare_like_with_like(pieces):
    plain = json.loads(deeppcr.plan(CHAIN, Z0).to_json())["chains"][0]
    write_trials(pieces, "cpu", {"sequential": 100.0, "sequential / autodiff": 300.0})
    tried = json.loads(deeppcr.plan(CHAIN, Z0).to_json())["chains"][0]
    for kind in ("forward", "gradient"):
        known = {each["name"]: each["speedup"] for each in plain[kind]}
        assert {each["name"]: each["speedup"] for each in tried[kind]} == pytest.approx(known)
        assert tried[kind][0]["measured_seconds"] in (100.0, 300.0)


# -- files that do no harm ------------------------------------------------------------------------------------------------------

GARBAGE = {
    "nothing": b"",
    "half": b'{"sequential": 2.0, "Newt',
    "bytes": bytes(range(128, 256)),
    "list": b'[["sequential", 1.0]]',
    "number": b"3",
    "null": b"null",
    "negative": json.dumps({"sequential": 1.0, NEWTON: -1.0}).encode(),
    "zero": json.dumps({NEWTON: 0.0}).encode(),
    "NaN": json.dumps({NEWTON: float("nan")}).encode(),
    "infinite": json.dumps({NEWTON: float("inf")}).encode(),
    "words": json.dumps({NEWTON: "fast"}).encode(),
    "inner list": json.dumps({NEWTON: [1.0]}).encode(),
    "too large": json.dumps({NEWTON: 1.0}).replace("1.0", "1" + "0" * 400).encode(),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", GARBAGE)
def test_a_file_that_holds_something_else_counts_as_none(pieces, content):
    path = trials_file(pieces, "cpu")
    path.parent.mkdir(parents=True)
    path.write_bytes(GARBAGE[content])
    assert read_trials(pieces, "cpu").keys() <= {"sequential"}
    assert choose_method(pieces, "cpu") == deeppcr.Sequential()
    write_trials(pieces, "cpu", {NEWTON: 0.5})
    assert read_trials(pieces, "cpu")[NEWTON] == 0.5


def folder_for_file(path):
    path.mkdir(parents=True)


def file_for_folder(path):
    path.parent.parent.mkdir(parents=True)
    path.parent.write_text("")


def pipe(path):
    path.parent.mkdir(parents=True)
    os.mkfifo(path)  # whoever reads it waits


@pytest.mark.parametrize(
    "make", [folder_for_file, file_for_folder, pipe], ids=lambda make: make.__name__
)
def test_what_is_no_file_counts_as_none(pieces, make):
    make(trials_file(pieces, "cpu"))
    assert read_trials(pieces, "cpu") == {}
    assert choose_method(pieces, "cpu") == deeppcr.Sequential()
    write_trials(pieces, "cpu", {"sequential": 1.0})


def test_a_change_of_the_file_is_noticed(pieces):
    path = trials_file(pieces, "cpu")
    for seconds in (1.0, 2.0, 3.0):
        write_trials(pieces, "cpu", {"sequential": seconds})
        assert read_trials(pieces, "cpu") == {"sequential": seconds}
    path.unlink()
    assert read_trials(pieces, "cpu") == {}


def test_a_platform_that_is_not_here_has_no_trials(pieces):
    assert trials_file(pieces, "cuda") is None
    write_trials(pieces, "cuda", {"sequential": 1.0})
    assert read_trials(pieces, "cuda") == {}


# -- the signature --------------------------------------------------------------------------------------------------------------

PROGRAM = """
import jax
jax.config.update("jax_enable_x64", True)
from tests.plan.chains import CHAINS, pieces_of
from tests.plan.test_trials import own_rule
print(*(pieces_of(*CHAINS[name]).signature for name in CHAINS), pieces_of(*own_rule()).signature)
"""


def own_rule():
    @jax.custom_jvp
    def f(z):
        return jnp.sin(z)

    f.defjvps(lambda t, _, z: 2 * t * jnp.cos(z))
    return deeppcr.Chain(lambda z, x: f(z) + x, jnp.ones((4, 3))), jnp.ones(3)


def test_the_signature_is_the_same_in_another_process():
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    here = [
        *(pieces_of(*CHAINS[name]).signature for name in CHAINS),
        pieces_of(*own_rule()).signature,
    ]
    assert done.stdout.split() == here
    assert len(set(here)) == len(here)


def test_the_signature_differs_for_other_chains():
    def twice(z, x):
        return jnp.tanh(2 * z + x)

    found = [
        pieces_of(*like()),
        pieces_of(*like(step=twice)),
        pieces_of(*like(width=8)),
        pieces_of(*like(length=8)),
        pieces_of(*like(dtype="float64")),
        pieces_of(deeppcr.Chain(elementwise, jnp.ones((8, 2, 4))), jnp.ones((2, 4)), 1),
        pieces_of(deeppcr.Chain(elementwise, jnp.ones((8, 2, 4))), jnp.ones((2, 4)), 0),
    ]
    assert len({pieces.signature for pieces in found}) == len(found)
    assert pieces_of(*like()).signature == found[0].signature
