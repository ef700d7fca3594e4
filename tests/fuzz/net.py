"""Whether a program fails, the smallest one that fails alike, and the search for failures."""

import contextlib
import dataclasses
import io
import sys
import time
import types
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from tests.fuzz import agree
from tests.fuzz.scans import Scan, smaller


@dataclasses.dataclass(frozen=True)
class Failure:
    """What is wrong: of which kind, in words."""

    kind: str
    words: str


class Meaningless(Exception):
    """A program that the oracle itself cannot run."""


def find_failure(program: Scan, spoil: Callable[[Any], Any] = lambda ours: ours) -> Failure | None:
    """What is wrong with deeppcr's answer, or with a spoiled one; None if nothing is."""
    source = program.text
    names = built(source)
    try:
        expected, marks = outcome(program, names, names["oracle"])
    except Exception as error:
        raise Meaningless(f"{type(error).__name__}: {error}") from error
    try:
        found, own_marks = outcome(program, names, spoil(names["ours"]))
    except Exception as error:
        if isinstance(error, TypeError | ValueError | NotImplementedError) and program.refuses(
            str(error)
        ):
            return None
        if program.disabled and not runs_without_jit(program, names):
            return None
        return Failure(f"raises {type(error).__name__}", f"{type(error).__name__}: {error}")
    wrong = agree.differences(program, expected, found, partial(disturbed, program, source, names))
    if wrong and program.is_ambiguous:
        other, _ = outcome(program, names, unrolled)
        wrong = (
            agree.differences(program, other, found, partial(disturbed, program, source, names))
            and wrong
        )
    if wrong:
        kind = (
            "is not finite"
            if any("found nan" in line or "found inf" in line for line in wrong)
            else "is wrong"
        )
        return Failure(kind, "\n".join(wrong))
    if len(marks) != len(own_marks) or not np.allclose(marks, own_marks, rtol=0.02, atol=1e-3):
        return Failure("has other effects", f"expected {marks}, found {own_marks}")
    return None


def runs_without_jit(program: Scan, names: dict[str, Any]) -> bool:
    """Whether jax can run the sequential program without jit."""
    try:
        outcome(program, names, lambda *args, **options: names["oracle"](*args, **options))
    except Exception:
        return False
    return True


def built(source: str) -> dict[str, Any]:
    """What the text of a program defines. It is a module, as it is for its user."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    exec(compile(source, "<program>", "exec"), module.__dict__)
    return module.__dict__


def outcome(program: Scan, names: dict[str, Any], scan: Any) -> tuple[Any, list[float]]:
    """What the program returns, and what its effects have left, in order."""
    names["seen"].clear()
    printed = io.StringIO()
    function = partial(names["observe"], scan)
    if program.is_checked:
        function = checkify.checkify(function)
    without_jit = jax.disable_jit(program.disabled and scan is not names["oracle"])
    with contextlib.redirect_stdout(printed), without_jit, warnings.catch_warnings():
        if program.batch and any(not d.forward or "inner(" in d.text for d in program.does):
            # How a `jax.custom_vjp`, or a chain in a step, couples examples is not known.
            warnings.filterwarnings("ignore", "the examples of a batch may influence each other")
        found = (jax.jit(function) if program.jitted else function)(*names["arguments"])
        jax.block_until_ready(found)
        jax.effects_barrier()
    seen = [float(np.sum(value)) for value in names["seen"]] + [
        float(line) for line in printed.getvalue().split() if _is_number(line)
    ]
    if program.is_checked:
        error, found = found
        seen.append(float(error.get() is not None))
    return jax.tree.map(np.asarray, found), seen


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def unrolled(step: Any, init: Any, xs: Any, length: int, reverse: bool = False) -> Any:
    """`jax.lax.scan`, written out."""
    state, ys = init, []
    for i in reversed(range(length)) if reverse else range(length):
        state, y = step(state, jax.tree.map(lambda x, i=i: x[i], xs))
        ys.append(y)
    return state, jax.tree.map(lambda *y: jnp.stack(y), *(ys[::-1] if reverse else ys))


def disturbed(program: Scan, source: str, names: dict[str, Any]) -> list[Any]:
    """The results of the sequential program with rounding errors, and in float64."""
    eps = float(jnp.finfo(program.dtype).eps)

    def run(sample: Any) -> Any:
        return names["observe"](
            agree.noisy(sample, eps), *agree.disturbed_arguments(names["arguments"], sample, eps)
        )

    if program.is_checked:
        run = _without_error(run)
    with contextlib.redirect_stdout(io.StringIO()):
        one = jax.jit(run)
        found = [jax.tree.map(np.asarray, one(sample)) for sample in range(agree.SAMPLES)]
        exact = program.in_float64(source)
        if exact is not None:
            names = built(exact)
            found.append(outcome(program, names, names["oracle"])[0])
    return found


def _without_error(function: Callable[..., Any]) -> Callable[..., Any]:
    checked = checkify.checkify(function)
    return lambda *args: checked(*args)[1]


def shrink(
    program: Scan, failure: Failure, fails: Any, until: float, tries: int = 10**6
) -> tuple[Scan, Failure]:
    """The smallest program that fails alike, if there is time ``until`` (`time.monotonic`)."""
    index = since = 0  # the next candidate, and how many were tried since the last that failed
    tried = {program}
    while True:
        candidates = list(smaller(program))
        if since >= len(candidates) or len(tried) > tries or time.monotonic() > until:
            return program, failure
        candidate = candidates[index % len(candidates)]
        index, since = index % len(candidates) + 1, since + 1
        if candidate in tried:
            continue
        tried.add(candidate)
        with contextlib.suppress(Meaningless):
            found = fails(candidate)
            if found is not None and found.kind == failure.kind:
                program, failure, since, index = candidate, found, 0, index - 1


def report(program: Scan, failure: Failure) -> str:
    """The program and what is wrong, in words."""
    words = "".join(f"# {line}\n" for line in failure.words.split("\n"))
    return f"# {failure.kind}\n{words}\n{program.text}"
