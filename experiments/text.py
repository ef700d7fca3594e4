"""How many evaluations do text, pixels and flows take, whose entries depend on all before them?

A causal transformer of two layers, trained here, as three triangular maps:

text     characters of the documentation that Python ships with: the most likely one (greedy), or
         drawn with noise of Gumbel that is fixed for each entry; after a prompt of 32
digits   scikit-learn's 8x8 digits, drawn pixel by pixel, of 17 levels
flow     digits with noise from an autoregressive flow: z -> x in 64 dimensions, real numbers

The guess is zeros; for text also what n-grams of the text that was learnt say. The sequential
programs are a loop that keeps keys and values, one entry an evaluation ("cached loop"), and the map
evaluated for one entry after another ("loop").
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import deeppcr
from experiments.bench import command
from experiments.bench.engine import Case
from experiments.bench.table import Row
from experiments.bench.timing import Effort, interleave
from experiments.models.training import Params, normal, train

TAKES = "2 min"
RTOL = 1e-6  # of real entries
WIDTH, HEADS, LAYERS, BATCH, RATE = 64, 4, 2, 16, 3e-3
STEPS, QUICK_STEPS = 300, 50  # of the training
LENGTH, PROMPT = 96, 32
LEVELS, PIXELS = 17, 64
COLUMNS = {
    "entries": "what is computed: entries after the prompt, each one evaluation of a loop",
    "L": "number of entries",
    "iterations": "evaluations that `deeppcr.triangular` takes (mean)",
    "an evaluation": "entries / iterations",
    "iterations, n-grams": "the same from a guess: what most often follows the last 5 characters",
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


@partial(jax.jit, static_argnums=(0, 1))
def parallel(
    entries: Map, window: int | None, params: Params, prompt: Array, noise: Array, guess: Any = None
) -> deeppcr.TriangularSolution:
    """By `deeppcr.triangular`; the sequential program with a window of 1. The guess: or zeros."""

    def step(y: Array) -> Array:
        new = entries.decide(outputs(entries, params, y), noise)
        return new.at[: len(prompt)].set(prompt)

    guess = jnp.zeros(len(noise), prompt.dtype) if guess is None else guess
    # Real entries change by rounding long after they are right.
    rtol = RTOL if jnp.issubdtype(guess.dtype, jnp.floating) else None
    return deeppcr.triangular(step, guess, window=window, rtol=rtol)


@partial(jax.jit, static_argnums=0)
def cached_loop(entries: Map, params: Params, prompt: Array, noise: Array) -> Array:
    """The prompt at once, then one entry an evaluation, with keys and values of those before it."""
    first = len(prompt)
    x = jnp.pad(entries.embed(params, prompt), [(1, 0), (0, 0)])
    found, caches = transformer(params, x, jnp.arange(first + 1), empty(len(noise)))

    def one(carry: Any, index: Array) -> tuple[Any, Array]:
        last, caches = carry
        x = entries.embed(params, last[None])
        found, caches = transformer(params, x, index[None], caches)
        new = entries.decide(found, noise[index][None])[0]
        return (new, caches), new

    new = entries.decide(found[-1:], noise[first : first + 1])[0]
    _, rest = lax.scan(one, (new, caches), jnp.arange(first + 1, len(noise)))
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


def continued(text: Any, prompt: Any, order: int = 5) -> Any:
    """A guess: after the prompt what most often follows the last entries in a text."""
    grams, found = np.lib.stride_tricks.sliding_window_view(text[:-1], order), list(prompt)
    while len(found) < LENGTH:
        following = text[order:][(grams == found[-order:]).all(1)]
        found.append(np.bincount(following).argmax() if len(following) else 0)
    return np.array(found, text.dtype)


def measured(
    name: str, entries: Map, params: Params, prompts: Any, noise: Array, effort: Effort
) -> Row:
    """The mean over examples, one after another."""
    programs: dict[str, Callable[..., Any]] = {  # by the column of their time
        "ms": partial(parallel, entries, None, params),
        "loop ms": partial(parallel, entries, 1, params),
        "cached loop ms": partial(cached_loop, entries, params),
    }
    given = list(zip(map(jnp.asarray, prompts), noise, strict=True))
    calls = {key: partial(lambda f: [f(*each) for each in given], f) for key, f in programs.items()}
    found, loops, others = (call() for call in calls.values())
    count, values = noise.shape[1] - len(prompts[0]), [each.value for each in found]
    iterations = float(np.mean([int(each.iterations) for each in found]))
    return {
        "entries": name,
        "L": count,
        "iterations": iterations,
        "an evaluation": count / iterations,
        **{key: 1e3 * time.median / len(given) for key, time in interleave(calls, effort).items()},
        "equal": agreement(values, [each.value for each in loops]),
        "equal, cached": agreement(values, others),
    }


def agreement(found: list[Array], others: list[Array]) -> float:
    """The share of entries that are equal, if real up to 1e-4."""
    return float(np.mean(np.isclose(found, others, rtol=1e-4, atol=1e-4)))


def characters(steps: int, count: int, effort: Effort) -> Iterator[Row]:
    """Text, the most likely and drawn."""
    from pydoc_data.topics import topics

    words = "".join(filter(str.isascii, "".join(topics.values()))).split()
    whole = " ".join(word for word in words if any(map(str.isalnum, word)))  # no lines of stars
    letters = sorted(set(whole))
    numbers, most = np.array([*map(letters.index, whole)], np.int32), int(0.9 * len(whole))
    entries = tokens(len(letters))
    params = trained(entries, numbers[None, :most], LENGTH, steps)
    starts = np.random.default_rng(0).integers(most, len(whole) - PROMPT, count)
    prompts = [numbers[start : start + PROMPT] for start in starts]
    noise = jax.random.gumbel(jax.random.key(2), (count, LENGTH, len(letters)), jnp.float32)
    guesses = [continued(numbers[:most], prompt) for prompt in prompts]
    for name, scale in (("text, greedy", 0.0), ("text, drawn", 1.0)):
        given = zip(map(jnp.asarray, prompts), scale * noise, guesses, strict=True)
        found = [parallel(entries, None, params, *each).iterations for each in given]
        row = measured(name, entries, params, prompts, scale * noise, effort)
        yield row | {"iterations, n-grams": float(np.mean(found))}


def pixels(name: str, entries: Map, steps: int, count: int, effort: Effort) -> Iterator[Row]:
    """Digits, ``[1797, 64]``, drawn pixel by pixel: of 17 levels, or real."""
    from sklearn.datasets import load_digits

    data, shape = load_digits().data.astype(np.int32), (count, PIXELS)
    noise = jax.random.gumbel(jax.random.key(2), (*shape, LEVELS), jnp.float32)
    if entries is FLOW:
        data = (data + np.random.default_rng(0).uniform(size=data.shape)).astype(np.float32) / 8 - 1
        noise = jax.random.normal(jax.random.key(2), shape, jnp.float32)
    params = trained(entries, data, PIXELS, steps)
    yield measured(name, entries, params, [data[0, :0]] * count, noise, effort)


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    entries = tokens(LEVELS)
    params = weights(entries, 16, jax.random.key(0))
    arguments = params, jnp.zeros(2, jnp.int32), jnp.zeros((16, LEVELS), jnp.float32)
    return [Case({"entries": "tokens"}, [arguments], {}, {"": partial(parallel, entries, None)})]


def main(argv: list[str]) -> None:
    """Train and measure."""
    options = command.parser("text", __doc__).parse_args(argv)
    steps, count = (QUICK_STEPS, 2) if options.quick else (STEPS, 8)
    parts: list[Callable[..., Iterator[Row]]] = [
        characters,
        partial(pixels, "digits, drawn", tokens(LEVELS)),
        partial(pixels, "flow", FLOW),
    ]
    cases = [partial(part, steps, count, Effort(options.repeats)) for part in parts]
    command.run(options, cases, {"": COLUMNS}, together=[""])
