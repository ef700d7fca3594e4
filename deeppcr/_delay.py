"""`delay(f, k)`: a step that reads the last k states, ``z_l = f((z_{l-1}, ..., z_{l-k}), x_l)``.

The window ``w_l = (z_l, ..., z_{l-k+1})`` follows from the window before it alone,

    w_l = (f(w_{l-1}, x_l), z_{l-1}, ..., z_{l-k+1}),

so windows form a chain. Its Jacobian is a block companion matrix: the k derivatives of f in the
first block row, identities below. Methods with full blocks work on k times the width of a state.

References: H. Lütkepohl, New Introduction to Multiple Time Series Analysis (2005), Section 2.1.1,
the VAR(1) form of a VAR(p).
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.checks import check_count


@dataclasses.dataclass(frozen=True)
class Delay:
    """A step on windows of the last k states, made by `delay`.

    Attributes:
        f: ``f(states, x) -> state``.
        k: the number of states that it reads.
    """

    f: Callable[[tuple[Any, ...], Any], Any]
    k: int

    def __call__(self, window: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        """The next window: a step for `deeppcr.Chain`."""
        window = self._checked(window, "the window")
        state = jax.tree.map(jnp.asarray, self.f(window, x))
        _check_alike(state, window[0], "what f returns", "the states that it reads")
        return (state, *window[:-1])

    def emit(self, window: tuple[Any, ...], x: Any) -> tuple[tuple[Any, ...], Any]:
        """The next window, with its most recent state as output: a step for `deeppcr.scan`."""
        window = self(window, x)
        return window, window[0]

    def window(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """The initial window.

        Args:
            states: the k states before the first step, most recent first:
                $z_0, z_{-1}, ..., z_{1-k}$.

        Raises:
            TypeError: they differ in structure or dtype.
            ValueError: there are not k of them, or they differ in shape.
        """
        window = jax.tree.map(jnp.asarray, self._checked(states, "states"))
        for index, state in enumerate(window):
            _check_alike(state, window[0], f"states[{index}]", "states[0]")
        return window

    def newest(self, windows: tuple[Any, ...]) -> Any:
        """The most recent state of a window; of a trajectory of windows, that of states."""
        return self._checked(windows, "windows")[0]

    def _checked(self, states: Any, name: str) -> tuple[Any, ...]:
        expected = f"k = {self.k} states, newest first"
        if not isinstance(states, tuple | list):
            raise TypeError(f"{name} is {type(states).__name__}, expected a tuple of {expected}.")
        if len(states) != self.k:
            raise ValueError(f"{name} has {len(states)} entries, expected {expected}.")
        return tuple(states)


def delay(f: Callable[[tuple[Any, ...], Any], Any], k: int) -> Delay:
    """A step that reads the last k states: $z_l = f((z_{l-1}, ..., z_{l-k}), x_l)$.

    The state of the chain is the window of the last k states, so full Jacobian blocks are k times
    as wide as those of a state.

    Args:
        f: ``f(states, x) -> state``, where ``states`` is a tuple of the last k states, most recent
            first. A state is an array or a pytree of arrays, with the same structure, shapes and
            dtypes at every step.
        k: integer >= 1, the number of states that ``f`` reads.

    Returns:
        a step for `deeppcr.Chain`, whose state is the window $(z_l, ..., z_{l-k+1})$, a tuple.
        Its ``emit`` is a step for `deeppcr.scan` with the states $z_l$ as outputs.
        ``window(states)`` returns the initial window, and ``newest(windows)`` the most recent state
        of a window or of a trajectory of windows.

    Raises:
        TypeError: ``f`` is not callable, or ``k`` is not an integer.
        ValueError: ``k`` is less than 1.

    Example:
        >>> fibonacci = deeppcr.delay(lambda states, x: states[0] + states[1], 2)
        >>> initial = fibonacci.window([jnp.float32(1.0), jnp.float32(0.0)])
        >>> deeppcr.scan(fibonacci.emit, initial, length=6)[1]
        Array([ 1.,  2.,  3.,  5.,  8., 13.], dtype=float32)
        >>> solution = deeppcr.solve(deeppcr.Chain(fibonacci, length=6), initial, method="newton")
        >>> fibonacci.newest(solution.trajectory)
        Array([ 1.,  2.,  3.,  5.,  8., 13.], dtype=float32)

    References:
        H. Lütkepohl, *New Introduction to Multiple Time Series Analysis*, 2005, section 2.1.1.
    """
    if not callable(f):
        raise TypeError(f"f is {type(f).__name__}, expected a function f(states, x) -> state.")
    check_count("k", k, "how many states f reads")
    return Delay(f, operator.index(k))


def _check_alike(state: Any, like: Any, name: str, expected: str) -> None:
    """Raise unless two states have the same structure, shapes and dtypes."""
    found: Any = jax.tree.structure(state)
    wanted: Any = jax.tree.structure(like)
    if found != wanted:
        raise TypeError(f"{name} has the structure {found}, expected that of {expected}: {wanted}.")
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(like), strict=True
    ):
        where, shape, dtype = name + jax.tree_util.keystr(path), jnp.shape(y), jnp.result_type(y)
        if x.shape != shape:
            raise ValueError(
                f"{where} has shape {list(x.shape)}, expected that of {expected}: {list(shape)}."
            )
        if x.dtype != dtype:
            raise TypeError(f"{where} has dtype {x.dtype}, expected that of {expected}: {dtype}.")
