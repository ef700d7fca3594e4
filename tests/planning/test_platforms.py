"""A process with a GPU and a CPU: jax lowers the variant that is best for the platform."""

import importlib
from functools import partial

import jax
import pytest

import deeppcr
from deeppcr.choose import Choice, choose_adjoint
from deeppcr.lower.variants import by_platform, differing, platforms
from tests.planning.chains import CHAINS
from tests.problems import assert_agree

auto = importlib.import_module("deeppcr.solving.problem")
variants = importlib.import_module("deeppcr.lower.variants")
CHAIN, Z0 = CHAINS["elementwise"]
LOOP = "stablehlo.while"


@pytest.fixture
def both(monkeypatch):
    """A process with a GPU, jax's default device, on which Newton's method pays off."""
    newton = Choice(deeppcr.Newton(), {}), Choice(deeppcr.Adjoint(linear="pcr"), {})
    loop = Choice(deeppcr.Sequential(), {})
    on = {"cuda": newton, "cpu": (loop, choose_adjoint)}
    monkeypatch.setattr(variants, "platforms", lambda: ("cuda", "cpu"))
    monkeypatch.setattr(auto, "choose_method", lambda chain, name: on[name][0])
    monkeypatch.setattr(
        auto,
        "choose_adjoint",
        lambda *given: on["cuda"][1] if given[-1] == "cuda" else choose_adjoint(*given),
    )


def states(z, xs, **options):
    return deeppcr.solve(deeppcr.Chain(CHAIN.step, xs), z, **options).trajectory


def gradient(z, xs, **options):
    return jax.grad(lambda z, xs: (states(z, xs, **options) ** 2).sum(), (0, 1))(z, xs)


gradient_after_sequential = partial(gradient, method="sequential")
expected = jax.jit(partial(gradient_after_sequential, adjoint="autodiff"))  # without "auto"


def lowered(f, *platforms):
    return jax.jit(f).trace(Z0, CHAIN.inputs).lower(lowering_platforms=platforms).as_text()


def conditions(text):
    """The conditions of loops: those that count compare integers, Newton's compares two of its own."""
    return sum("stablehlo.and" in part.partition("} do {")[0] for part in text.split("cond {")[1:])


@pytest.mark.parametrize(
    ("f", "names", "waiting"), [(states, ("cpu", "cuda"), 1), (gradient, ("cuda", "cpu"), 2)]
)
def test_each_platform_gets_its_own(both, monkeypatch, f, names, waiting):
    """Newton's own loop waits for its result, and corrections of an adjoint that is not right."""
    monkeypatch.setattr(variants, "platforms", lambda: names)
    cpu, cuda = lowered(f, "cpu"), lowered(f, "cuda")
    assert (conditions(cpu), conditions(cuda)) == (0, waiting)
    assert cpu.count(LOOP) >= 1


def test_each_platform_has_its_own_adjoint(both):
    cpu, cuda = (lowered(gradient_after_sequential, name) for name in ("cpu", "cuda"))
    assert cpu.count(LOOP) == 2  # forwards, backwards
    # Backwards, all at once; corrections, and a loop of one trip or none, around the steps.
    assert cuda.count(LOOP) == 4


def test_on_this_machine_it_is_the_sequential_program(both):
    actual = jax.jit(gradient_after_sequential)(Z0, CHAIN.inputs)
    assert_agree(actual, expected(Z0, CHAIN.inputs))


def test_a_program_for_both_is_exported(both):
    exported = jax.export.export(jax.jit(gradient), platforms=("cpu", "cuda"))(Z0, CHAIN.inputs)
    assert exported.platforms == ("cpu", "cuda")
    assert_agree(exported.call(Z0, CHAIN.inputs), expected(Z0, CHAIN.inputs))


def test_where_platforms_agree_there_is_one_program(monkeypatch, parallel):
    texts = set()
    for names in (("cpu",), ("cpu", "cuda", "tpu"), ("tpu", "cpu")):
        monkeypatch.setattr(variants, "platforms", lambda names=names: names)
        texts.add(str(jax.make_jaxpr(gradient)(Z0, CHAIN.inputs)))
    assert len(texts) == 1
    assert "while[" in texts.pop()


def test_the_platforms_of_this_process():
    assert "cpu" in platforms()
    assert platforms()[0] == jax.devices()[0].platform
    with jax.default_device("cpu"):
        assert platforms()[0] == "cpu"
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        assert platforms()[0] == "cpu"
    assert len(set(platforms())) == len(platforms())


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"cuda": 1, "cpu": 2, "tpu": 1}, {"default": 1, "cpu": 2}), ({"cpu": 1}, {"default": 1})],
)
def test_what_differs_from_the_first_has_a_name(given, expected):
    assert differing(given) == expected


def test_the_way_of_the_platform_is_called():
    def on(amount):
        return lambda x: x + amount

    def f(x):
        return by_platform({"default": on(1.0), "cuda": on(2.0)})(x)

    text = {
        name: jax.jit(f).trace(1.0).lower(lowering_platforms=(name,)).as_text()
        for name in ("cpu", "cuda", "tpu")
    }
    assert {name: ("1.0" in t, "2.0" in t) for name, t in text.items()} == {
        "cpu": (True, False),
        "cuda": (False, True),
        "tpu": (True, False),
    }
    assert jax.jit(f)(1.0) == 2.0
