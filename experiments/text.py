"""How many evaluations do text, pixels and flows take, whose entries depend on all before them?

A causal transformer of two layers, trained here, as three triangular maps:

text     characters of the documentation that Python ships with: the most likely one (greedy), or
         drawn with noise of Gumbel that is fixed for each entry; after a prompt of 32
digits   scikit-learn's 8x8 digits, drawn pixel by pixel, of 17 levels
flow     digits with noise from an autoregressive flow: z -> x in 64 dimensions, real numbers

Guesses are zeros, or the text that follows the longest part of the prompt in the training set. The
sequential programs are a loop that keeps keys and values, one entry an evaluation ("cached loop"),
and the map evaluated for one entry after another ("loop").
"""

import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import deeppcr
from experiments.bench import command
from experiments.bench.table import Row
from experiments.bench.timing import Effort, interleave
from experiments.models.training import Params, normal, train

TAKES = "8 min"
WIDTH, HEADS, LAYERS, BATCH, RATE = 64, 4, 2, 16, 3e-3
LENGTH, PROMPT = 160, 32
LEVELS, PIXELS = 17, 64
COLUMNS = {
    "entries": "what is computed: entries after the prompt, each one evaluation of a loop",
    "guess": "of all entries, before the first evaluation",
    "L": "number of entries",
    "iterations": "evaluations that `deeppcr.triangular` takes (mean)",
    "an evaluation": "entries / iterations",
    "ms": "its time for an example, in milliseconds",
    "loop ms": "time of the map evaluated for one entry after another",
    "cached loop ms": "time of the loop that keeps keys and values",
    "equal": "entries that equal those of the loop, of all",
    "equal, cached": "the same for the cached loop, whose kernels have other shapes",
}


class Map(NamedTuple):
    """What an entry is to the transformer."""

    outputs: int  # numbers that it returns for an entry
    embed: Callable[[Params, Array], Array]  # entries [T] as vectors [T, WIDTH]
    loss: Callable[[Array, Array], Array]  # of outputs for entries
    decide: Callable[[Array, Array], Array]  # entries, by outputs and noise


def tokens(count: int) -> Map:
    """Entries of so many classes; noise ``[T, count]``."""
    return Map(
        count,
        lambda params, y: params["embed"][y],
        lambda found, y: -jnp.take_along_axis(jax.nn.log_softmax(found), y[:, None], -1).mean(),
        lambda found, noise: (found + noise).argmax(-1).astype(jnp.int32),
    )


FLOW = Map(
    2,
    lambda params, y: y[:, None] * params["embed"][:1],
    lambda found, y: jnp.mean(
        0.5 * jnp.square((y - found[:, 0]) * jnp.exp(-found[:, 1])) + found[:, 1]
    ),
    lambda found, noise: found[:, 0] + jnp.exp(found[:, 1]) * noise,
)


def weights(entries: Map, length: int, key: Array) -> Params:
    """Random weights."""
    w, shapes = WIDTH, {"embed": (entries.outputs, WIDTH), "place": (length, WIDTH)}
    for layer in range(LAYERS):
        shapes |= {f"qkv{layer}": (w, 3 * w), f"mix{layer}": (w, w)}
        shapes |= {f"up{layer}": (w, 4 * w), f"down{layer}": (4 * w, w)}
    shapes["out"] = w, entries.outputs
    keys = jax.random.split(key, len(shapes))
    return {name: normal(own, *shapes[name]) for name, own in zip(shapes, keys, strict=True)}


def normalised(x: Array) -> Array:
    """Divided by the root of the mean square."""
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)


def transformer(
    params: Params, x: Array, index: Array, caches: tuple[Array, ...]
) -> tuple[Array, tuple[Array, ...]]:
    """The outputs for ``x: [n, WIDTH]`` at places ``index: [n]``, and keys and values of all."""
    x, kept = x + params["place"][index], []
    for layer, cache in enumerate(caches):
        q, k, v = jnp.split(normalised(x) @ params[f"qkv{layer}"], 3, axis=-1)
        cache = cache.at[index].set(jnp.concatenate([k, v], -1))
        kept.append(cache)
        keys, values = (a.reshape(len(cache), HEADS, -1) for a in jnp.split(cache, 2, axis=-1))
        scores = jnp.einsum("qhd,khd->hqk", q.reshape(len(x), HEADS, -1), keys)
        seen = jnp.arange(len(cache))[None, None] <= index[None, :, None]
        scores = jnp.where(seen, scores * (WIDTH / HEADS) ** -0.5, -1e9)
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), values)
        x = x + mixed.reshape(x.shape) @ params[f"mix{layer}"]
        x = x + jax.nn.gelu(normalised(x) @ params[f"up{layer}"]) @ params[f"down{layer}"]
    return normalised(x) @ params["out"], tuple(kept)


def empty(length: int) -> tuple[Array, ...]:
    """No keys and values yet."""
    return (jnp.zeros((length, 2 * WIDTH), jnp.float32),) * LAYERS


def outputs(entries: Map, params: Params, y: Array) -> Array:
    """The outputs for all entries ``y: [T]``, each by those before it."""
    x = jnp.pad(entries.embed(params, y)[:-1], [(1, 0), (0, 0)])
    return transformer(params, x, jnp.arange(len(y)), empty(len(y)))[0]


Given = tuple[Params, Array, Array, Array]  # weights, guess, prompt, noise


def parallel(entries: Map, window: int | None, given: Given) -> deeppcr.TriangularSolution:
    """By `deeppcr.triangular`; the sequential program with a window of 1."""
    params, guess, prompt, noise = given

    def step(y: Array) -> Array:
        new = entries.decide(outputs(entries, params, y), noise)
        return new.at[: len(prompt)].set(prompt)

    return deeppcr.triangular(step, guess, window=window)


def cached_loop(entries: Map, given: Given) -> Array:
    """The prompt at once, then one entry an evaluation, with keys and values of those before it."""
    params, guess, prompt, noise = given
    first = len(prompt)
    x = jnp.pad(entries.embed(params, prompt), [(1, 0), (0, 0)])
    found, caches = transformer(params, x, jnp.arange(first + 1), empty(len(guess)))

    def one(carry: Any, index: Array) -> tuple[Any, Array]:
        last, caches = carry
        x = entries.embed(params, last[None])
        found, caches = transformer(params, x, index[None], caches)
        new = entries.decide(found, noise[index][None])[0]
        return (new, caches), new

    new = entries.decide(found[-1:], noise[first : first + 1])[0]
    _, rest = lax.scan(one, (new, caches), jnp.arange(first + 1, len(guess)))
    return jnp.concatenate([prompt, new[None], rest])


def trained(entries: Map, data: np.ndarray, length: int, steps: int) -> Params:
    """Trained on parts of ``data: [count, T]`` that start anywhere."""
    (many, longest), parts = data.shape, jnp.asarray(data)

    def loss(params: Params, key: Array) -> Array:
        of_row, of_start = jax.random.split(key)
        rows = jax.random.randint(of_row, (BATCH,), 0, many)
        starts = jax.random.randint(of_start, (BATCH,), 0, longest - length + 1)

        def one(row: Array, start: Array) -> Array:
            part = lax.dynamic_slice(parts, (row, start), (1, length))[0]
            return entries.loss(outputs(entries, params, part), part)

        return jax.vmap(one)(rows, starts).mean()

    first = weights(entries, length, jax.random.key(0))
    return train(loss, first, steps, RATE, jax.random.key(1))


def following(text: str, found: str) -> str:
    """A prompt, and what follows the longest end of it in the text, character by character."""
    while len(found) < LENGTH:
        ends = (found[-size:] for size in range(12, 0, -1))
        places = (text.find(end) + len(end) for end in ends if end in text[:-1])
        found += text[next(places, 0)]
    return found


def measured(
    name: str, entries: Map, params: Params, guesses: Any, rest: Any, effort: Effort
) -> Iterator[Row]:
    """A row for each kind of guess, of examples: their guesses, and the ``rest`` of each."""
    for guess, mine in guesses.items():
        given = [(params, jnp.asarray(y), *own) for y, own in zip(mine, rest, strict=True)]
        programs = compiled(entries)
        found, loops, others = (map_all(f, given) for f in programs.values())
        count, values = len(mine[0]) - len(rest[0][0]), [each.value for each in found]
        iterations = float(np.mean([int(each.iterations) for each in found]))
        calls = {key: partial(map_all, f, given) for key, f in programs.items()}
        times = interleave(calls, effort)
        yield {
            "entries": name,
            "guess": guess,
            "L": count,
            "iterations": iterations,
            "an evaluation": count / iterations,
            **{key: 1e3 * time.median / len(given) for key, time in times.items()},
            "equal": agreement(values, [each.value for each in loops]),
            "equal, cached": agreement(values, others),
        }


@functools.cache
def compiled(entries: Map) -> dict[str, Callable[[Given], Any]]:
    """The programs, by the column of their time."""
    return {
        "ms": jax.jit(partial(parallel, entries, None)),
        "loop ms": jax.jit(partial(parallel, entries, 1)),
        "cached loop ms": jax.jit(partial(cached_loop, entries)),
    }


def map_all(f: Callable[[Given], Any], given: list[Given]) -> list[Any]:
    """One example after another."""
    return [f(each) for each in given]


def agreement(found: list[Array], others: list[Array]) -> float:
    """The share of entries that are equal, if real up to 1e-4."""
    return float(np.mean(np.isclose(found, others, rtol=1e-4, atol=1e-4)))


def text(steps: int, count: int, effort: Effort) -> Iterator[Row]:
    """Characters, the most likely and drawn ones."""
    from pydoc_data.topics import topics

    words = "".join(filter(str.isascii, "".join(topics.values()))).split()
    whole = " ".join(word for word in words if any(map(str.isalnum, word)))  # no lines of stars
    letters = sorted(set(whole))
    numbers, most = np.array([*map(letters.index, whole)], np.int32), int(0.9 * len(whole))
    entries = tokens(len(letters))
    params = trained(entries, numbers[None, :most], LENGTH, steps)
    starts = np.random.default_rng(0).integers(most, len(whole) - PROMPT, count)
    prompts = [numbers[start : start + PROMPT] for start in starts]
    copied = [following(whole[:most], whole[start : start + PROMPT]) for start in starts]
    guesses = {
        "zeros": np.zeros((count, LENGTH), np.int32),
        "following text": np.array([[*map(letters.index, each)] for each in copied], np.int32),
    }
    noise = jax.random.gumbel(jax.random.key(2), (count, LENGTH, len(letters)), jnp.float32)
    for name, scale in (("text, greedy", 0.0), ("text, drawn", 1.0)):
        rest = list(zip(map(jnp.asarray, prompts), scale * noise, strict=True))
        yield from measured(name, entries, params, guesses, rest, effort)


def drawn(name: str, entries: Map, steps: int, count: int, effort: Effort) -> Iterator[Row]:
    """Digits, ``[1797, 64]``, drawn pixel by pixel: of 17 levels, or real."""
    from sklearn.datasets import load_digits

    data, shape = load_digits().data.astype(np.int32), (count, PIXELS)
    noise = jax.random.gumbel(jax.random.key(2), (*shape, LEVELS), jnp.float32)
    if entries is FLOW:
        data = (data + np.random.default_rng(0).uniform(size=data.shape)).astype(np.float32) / 8 - 1
        noise = jax.random.normal(jax.random.key(2), shape, jnp.float32)
    params = trained(entries, data, PIXELS, steps)
    rest = [(jnp.zeros(0, data.dtype), own) for own in noise]
    guesses = {"zeros": np.zeros(shape, data.dtype)}
    yield from measured(name, entries, params, guesses, rest, effort)


PARTS: dict[str, Callable[[int, int, Effort], Iterator[Row]]] = {
    "text": text,
    "digits": partial(drawn, "digits, drawn", tokens(LEVELS)),
    "flow": partial(drawn, "flow", FLOW),
}


def main(argv: list[str]) -> None:
    """Train and measure."""
    steps_of = {"steps": "training steps (1000, quick: 50)"}
    options = command.parser("text", __doc__, tuple(PARTS), numbers=steps_of).parse_args(argv)
    steps, count = options.steps or (50 if options.quick else 1000), 2 if options.quick else 16
    effort = Effort(options.repeats)
    cases = [partial(PARTS[part], steps, count, effort) for part in options.parts]
    command.run(options, cases, {"": COLUMNS}, together=[""])
