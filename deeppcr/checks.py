"""Checks of common arguments, options as pytrees, and values in messages and printed tables."""

import dataclasses
import difflib
import functools
import inspect
import operator
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
PRINTED = (str, bytes, bool, int, float, complex, np.generic, type(None), type(...))
COLUMNS = 80  # of a printed line
LONGEST = 80  # characters of a value that is printed in full
# What arguments are called in jax, diffusers, diffrax, scipy and optimistix, and here, in order.
ELSEWHERE = {
    "num_inference_steps num_steps n_steps timesteps num_timesteps": ("steps",),
    "generator rng prng_key seed": ("key",),
    "latents noise sample x0 x_0": ("x_t", "z0", "init", "x"),
    "unet net network apply_fn": ("model", "layers"),
    "scheduler": ("schedule",),
    "fn func fun step body body_fun cell": ("f", "step", "program"),
    "carry initial init_carry initial_state state y0 h0": ("init", "z0", "x_t"),
    "inputs input sequence observations ts": ("xs", "x"),
    "backward": ("reverse",),
    "tol tolerance eps": ("rtol", "atol"),
    "maxiter max_iter max_steps num_iterations n_iter": ("max_iterations", "iterations"),
    "solver algorithm": ("method", "linear"),
    "guess x_init": ("initial_guess", "guess"),
    "jac jacobian": ("linearize",),
    "batch_dims batch_axes batch_size": ("batch_ndim",),
    "grad gradient backprop vjp": ("adjoint",),
    "verbose callback": ("progress",),
}
ENTRIES = 3  # of a list that are described, before "..."


def check_count(
    name: str, value: Any, meaning: str, least: int = 1, optional: bool = False
) -> None:
    """Raise unless ``value`` is an integer >= ``least``, or None if ``optional``.

    ``meaning``: what it counts, as "steps per model call".
    """
    if optional and value is None:
        return
    expected = f"expected {'None or ' * optional}an integer >= {least} ({meaning})."
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {describe(value)}, {expected}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}, {expected}")
    if number < least:
        raise ValueError(f"{name} is {number}, {expected}")


def check_name(name: str, value: Any, accepted: Iterable[str], objects: str) -> None:
    """Raise unless ``value`` is one of the ``accepted`` names.

    ``objects`` describes the other accepted objects, for which the caller has checked.
    """
    names = list(accepted)
    if not isinstance(value, str) or value not in names:
        error = ValueError if isinstance(value, str) else TypeError
        raise error(
            f"{name} is {describe(value)}, expected {objects} or one of the names {names}"
            f"{did_you_mean(value, names)}"
        )


def check_type(name: str, value: Any, accepted: Any, expected: str) -> None:
    """Raise unless ``value`` is of the ``accepted`` types; `Callable` is one of them.

    A class is callable, but a call makes an instance: expected was one. Those of pairs return a
    pair (carry, y).
    """
    is_class = isinstance(value, type) and not issubclass(value, tuple | list)
    if is_class or not isinstance(value, accepted):
        raise TypeError(f"{name} is {describe(value)}, expected {expected}.")


def check_tolerance(name: str, value: Any, optional: bool = False) -> None:
    """Raise unless ``value`` is a number >= 0, or None if ``optional``."""
    if optional and value is None:
        return
    expected = "expected a number >= 0" + (", or None." if optional else ".")
    if not (isinstance(value, Real) or getattr(value, "shape", None) == ()):
        raise TypeError(f"{name} is {describe(value)}, {expected}")
    if not value >= 0:
        raise ValueError(f"{name} is {value}, {expected}")


def leaves_as_arrays(name: str, tree: Any) -> list[Any]:
    """The leaves of a pytree as arrays; an error names the leaf that is not one."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [as_array(name + jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def as_array(name: str, value: Any) -> jax.Array:
    """``value`` as an array; an error names it if it is none."""
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError):
        raise no_array(name, value, "an array or a number") from None


def no_array(name: str, value: Any, expected: str) -> TypeError:
    """The error for a value that is no array."""
    kind = "the string " if isinstance(value, str) else ""
    kind = "the shape " if isinstance(value, jax.ShapeDtypeStruct) else kind
    return TypeError(f"{name} is {kind}{describe(value)}, expected {expected}.")


def unknown_keyword(function: Callable[..., Any], unknown: Iterable[str]) -> TypeError:
    """Python's error for an unknown keyword, with the closest known one.

    Functions call it that take ``**unknown: Never``: Python itself suggests names from 3.13 on.
    """
    name = function.__qualname__.removesuffix(".__init__")
    parameters = list(inspect.signature(function).parameters.values())
    names = [each.name for each in parameters if each.kind in KEYWORDS and each.name != "self"]
    odd = next(iter(unknown))
    return TypeError(
        f"{name}() got an unexpected keyword argument {odd!r}, expected one of {names}"
        f"{did_you_mean(odd, names)}"
    )


def suggests_arguments(function: F) -> F:
    """The same function, which raises `unknown_keyword` before Python misses an argument."""
    names = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        if unknown := [name for name in options if name not in names]:
            raise unknown_keyword(function, unknown)
        return function(*arguments, **options)

    return checked  # type: ignore[return-value]


def option_tree(*names: str) -> Callable[[type[T]], type[T]]:
    """A decorator for a frozen dataclass of options: a pytree, whose leaves are in these fields.

    A name, a number or a function in one of them is structure, as all other fields are: `jax.jit`
    compiles again for another one. What has been a leaf remains one, so any object may take its
    place, such as a batch axis: then the constructor, which checks options, does not run. A user's
    call of the constructor raises `unknown_keyword`. Subclasses are pytrees, too.
    """

    def register(kind: type[Any]) -> None:
        jax.tree_util.register_pytree_with_keys(
            kind, functools.partial(_flatten, names), functools.partial(_unflatten, kind)
        )

    def registered(kind: type[T]) -> type[T]:
        kind.__init__ = suggests_arguments(kind.__init__)  # type: ignore[method-assign]
        kind.__init_subclass__ = classmethod(register)  # type: ignore[assignment]
        register(kind)
        return kind

    return registered


def _flatten(names: Sequence[str], options: Any) -> tuple[list[Any], Any]:
    """See `option_tree`. What is a leaf is decided once for an object, and kept with it."""
    if "_structure" not in vars(options):
        held = tuple(name for name in names if not _is_structure(getattr(options, name)))
        rest = tuple(
            (each.name, _hashable(getattr(options, each.name)))
            for each in dataclasses.fields(options)
            if each.name not in held
        )
        vars(options)["_structure"] = held, rest
    held, rest = vars(options)["_structure"]
    return [(jax.tree_util.GetAttrKey(name), getattr(options, name)) for name in held], (held, rest)


def _unflatten(kind: type[T], structure: Any, children: Iterable[Any]) -> T:
    """See `option_tree`."""
    held, rest = structure
    options = object.__new__(kind)
    vars(options).update(rest, _structure=structure, **dict(zip(held, children, strict=True)))
    return options


def _is_structure(value: Any) -> bool:
    """Whether an option is a name, a number or a function, and no pytree."""
    return isinstance(value, str | Real | Callable) and jax.tree_util.all_leaves([value])


def _hashable(value: Any) -> Any:
    """The value; for an array that a constructor has taken for a number, that number."""
    return value.item() if isinstance(value, jax.Array | np.ndarray) else value


def did_you_mean(value: Any, known: Iterable[str]) -> str:
    """The end of a message on an unknown name: the closest known one, or a full stop."""
    if not isinstance(value, str):
        return "."
    names = {name.lower(): name for name in known}
    name = value.lower()
    aliases = next((ours for theirs, ours in ELSEWHERE.items() if name in theirs.split()), ())
    near = [*filter(names.__contains__, aliases), *difflib.get_close_matches(name, names, 1)]
    return f"; did you mean {names[near[0]]!r}?" if near else "."


def describe(value: Any, depth: int = 2) -> str:
    """A value for a message: an array by its dtype and shape, never by its entries.

    Strings and numbers are printed, functions and classes by name, entries of lists and options of
    dataclasses down to a ``depth``, other objects by their type.
    """
    if isinstance(value, PRINTED):
        text = repr(value)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__} (did you mean {value.__name__}{_brackets(value)}?)"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        strings = getattr(value.dtype, "kind", "") in ("U", "S")
        return f"{'strings' if strings else value.dtype}{list(value.shape)}"
    if isinstance(value, list | tuple | dict):
        return f"{kind} of {len(value)}" + (f" ({_entries(value, depth - 1)})" if depth else "")
    if dataclasses.is_dataclass(value):
        return f"{kind}({_options(value, depth - 1) if depth else '...'})"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return kind


def _brackets(kind: type) -> str:
    """The brackets of a call that makes an instance: with dots if it needs arguments."""
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return "(...)"
    return "()"


def _entries(value: Any, depth: int) -> str:
    """The first entries of a list, a tuple or a dictionary."""
    if isinstance(value, dict):
        texts = [f"{describe(k, 0)}: {describe(v, depth)}" for k, v in value.items()]
    else:
        texts = [describe(entry, depth) for entry in value[:ENTRIES]]
    return ", ".join([*texts[:ENTRIES], *(["..."] if len(value) > ENTRIES else [])])


def _options(value: Any, depth: int) -> str:
    """The fields of a dataclass that differ from their defaults."""
    options = ((field, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return ", ".join(
        f"{field.name}={describe(option, depth)}"
        for field, option in options
        if field.repr and describe(option) != describe(field.default)
    )


def named_after(f: Callable[..., Any]) -> Callable[[F], F]:
    """A decorator: messages of jax call a function by the name, place and arguments of ``f``.

    ``f`` is the user's, and what is decorated calls it.
    """
    inner = inspect.unwrap(f)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    if not hasattr(inner, "__code__"):  # of a module jax would print all that it holds
        f = MethodType(type(inner).__call__, inner)
    wraps: Any = functools.wraps(f, updated=())  # the attributes of a module are not its own
    return wraps


def is_raised_here(error: BaseException) -> bool:
    """Whether this package raised it: not the user's function that it calls, nor jax in that."""
    frames = traceback.walk_tb(error.__traceback__)
    files = [Path(frame.f_code.co_filename) for frame, _ in frames]
    users = [file for file in files if Path(jax.__file__).parent not in file.parents]
    return bool(users) and Path(__file__).parent in users[-1].parents


def folded(text: str, indent: int) -> str:
    """The text, whose long lines go on in the next one, indented."""
    fold = textwrap.TextWrapper(
        COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False
    ).fill
    return "\n".join(map(fold, text.splitlines()))
