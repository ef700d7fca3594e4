"""Whether an elementwise expression is continuous where a choice in it changes, by trying it.

``where(|x| < 1, x^2 / 2, |x| - 1/2)`` is continuous, ``where(|x| < 1, x, 0)`` is not. Algebra that
knows all such cases would be long. Instead, an expression is evaluated in float64 along a line
through a random point, one variable after another. Between neighbouring points where a choice
differs, bisection finds the place where it changes; there the values on both sides are compared.
A choice that changes nowhere on these lines is not proven continuous. The test may err: a jump that
none of the random points shows is missed.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MOST = 48  # operations of an expression; beyond, values are variables
BISECTIONS = 90  # from 1 to 1e-27
SCALES = 10.0 ** np.arange(-6, 9, 0.5)
LINE = np.concatenate([-SCALES[::-1], [0.0], SCALES])
TOLERANCE = 1e-6  # between both sides of a choice, relative to the values on the line
SIDES = 2  # random points

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.logical_and,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "copy": lambda x: x,
    "cos": np.cos,
    "cosh": np.cosh,
    "div": np.divide,
    "eq": np.equal,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: 0.5 * (1 + np.tanh(x / 2)),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.logical_not,
    "or": np.logical_or,
    "pow": np.power,
    "rem": np.fmod,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "stop_gradient": lambda x: x,
    "sub": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
    "truncate": np.trunc,
    "xor": np.logical_xor,
}
STEPS = frozenset(("ceil", "eq", "floor", "ge", "gt", "le", "lt", "ne", "rem", "round", "sign"))
STEPS |= {"truncate"}


class Node:
    """An operation on other nodes, a constant, or a variable: a value that is not looked into.

    Attributes:
        name: of the operation; "" for a constant or a variable.
        function: of the values of ``operands``.
        operands: nodes.
        value: of a constant; None for others.
        moves: whether it depends on the state.
        is_bool: whether its values are flags.
        made: nodes that were made of it, so that the same operation makes the same node.
    """

    __slots__ = ("function", "is_bool", "made", "moves", "name", "operands", "value")

    def __init__(
        self,
        name: str = "",
        function: Callable[..., Any] | None = None,
        operands: tuple["Node", ...] = (),
        value: float | None = None,
        moves: bool = False,
        is_bool: bool = False,
    ) -> None:
        self.name, self.function, self.operands, self.value = name, function, operands, value
        self.moves, self.is_bool = moves, is_bool
        self.made: dict[Any, Node] = {}


def leaf(moves: bool, is_bool: bool = False) -> Node:
    """A variable."""
    return Node(moves=moves, is_bool=is_bool)


def literal(value: float) -> Node:
    """A constant."""
    return Node(value=value)


def operation(equation: Any, operands: list[Node]) -> Node:
    """The result of an elementwise equation; a variable, if its function is not known."""
    name, params = equation.primitive.name, equation.params
    moves = any(each.moves for each in operands)
    dtype = equation.outvars[0].aval.dtype
    is_bool = dtype == np.bool_
    function = FUNCTIONS.get(name)
    if name == "integer_pow":
        power = float(params["y"])
        name, function = f"power {power}", lambda x: x**power
    elif name == "select_n" and len(operands) == 3:
        function = lambda which, no, yes: np.where(which != 0, yes, no)  # noqa: E731
    elif name == "convert_element_type":
        whole = np.issubdtype(dtype, np.integer) and not operands[0].is_bool
        name, function = ("truncate", np.trunc) if whole else (name, lambda x: x)
        if is_bool:
            name, function = "ne", lambda x: x != 0
    if function is None:
        return leaf(moves, is_bool)
    if all(each.value is not None for each in operands):
        with np.errstate(all="ignore"):
            return literal(float(function(*(each.value for each in operands))))
    key = _key(equation, operands)
    return _made(
        operands, key, partial(Node, name, function, tuple(operands), None, moves, is_bool)
    )


def moved(node: Node, equation: Any) -> Node:
    """The node with its entries moved. A move and an elementwise operation commute."""
    if node.value is not None:
        return node  # all of its entries are equal
    dimensions = equation.params.get("broadcast_dimensions")
    if dimensions == tuple(range(len(equation.outvars[0].aval.shape))):
        return node  # repeated along axes of size 1, as elementwise operations do by themselves

    def make() -> Node:
        if not (node.is_bool and node.operands):
            return leaf(node.moves, node.is_bool)
        parts = tuple(moved(each, equation) for each in node.operands)
        return Node(node.name, node.function, parts, None, node.moves, True)

    return _made([node], _key(equation, []), make)


def variable_of(equation: Any, operands: list[Node], moves: bool, is_bool: bool) -> Node:
    """The result of an equation that is not looked into: the same for the same operands."""
    return _made(operands, _key(equation, operands), partial(Node, moves=moves, is_bool=is_bool))


def _key(equation: Any, operands: list[Node]) -> Any:
    params = {key: value for key, value in equation.params.items() if key != "sharding"}
    rest = [each if each.value is None else each.value for each in operands]
    return equation.primitive.name, str(params), tuple(rest)


def _made(operands: list[Node], key: Any, make: Callable[[], Node]) -> Node:
    """The node that was made of these operands by this operation, or a new one."""
    home = next((each for each in operands if each.value is None), None)
    if home is None:
        return make()
    if key not in home.made:
        home.made[key] = make()
    return home.made[key]


_KNOWN: OrderedDict[Any, bool] = OrderedDict()
KEPT = 1024  # expressions


def is_continuous(root: Node) -> bool:
    """Whether the value is continuous wherever a choice of the state in it changes."""
    order = _operations(root)
    shape = _shape(order)
    if shape not in _KNOWN:
        _KNOWN[shape] = _try(root, order)
        while len(_KNOWN) > KEPT:
            _KNOWN.popitem(last=False)
    return _KNOWN[shape]


def _shape(order: list[Node]) -> Any:
    """The expression with numbers for its variables: a network has one layer many times."""
    index = {id(node): i for i, node in enumerate(order)}

    def named(each: Node) -> Any:
        if each.value is not None:
            return "constant", each.value
        return index.setdefault(id(each), len(index)), each.moves, each.is_bool

    return tuple((node.name, tuple(map(named, node.operands))) for node in order)


def _try(root: Node, order: list[Node]) -> bool:
    inner = set(map(id, order))
    below = [each for node in order for each in node.operands if id(each) not in inner]
    variables = list({id(each): each for each in below if each.value is None}.values())
    steps = [node for node in order if node.name in STEPS and node.moves]
    if any(each.is_bool and each.moves for each in variables):
        return False  # a choice that is not looked into
    literals = [each.value for each in below if each.value is not None]
    line = np.unique(np.concatenate([LINE, literals, np.negative(literals)]))
    random = np.random.default_rng(0)
    found: set[int] = set()
    with np.errstate(all="ignore"):
        for variable in [each for each in variables if each.moves] * SIDES:
            point = {id(each): _drawn(each, random) for each in variables}

            def at(t: Array, variable: Node = variable, point: Any = point) -> dict[int, Array]:
                return _values(order, point | {id(variable): t})

            for step, low, high in _changes(steps, at, line):
                found.add(id(step))
                before, after = (at(t)[id(root)] for t in (low, high))
                size = 1 + np.minimum(np.abs(before), np.abs(after))
                if not np.all(np.abs(after - before) <= TOLERANCE * size):
                    return False
    return all(id(step) in found for step in steps)


def _drawn(variable: Node, random: np.random.Generator) -> Any:
    return np.asarray(random.random() < 0.5) if variable.is_bool else random.normal()


def _changes(
    steps: list[Node], at: Callable[[Array], dict[int, Array]], line: Array
) -> Iterator[tuple[Node, Array, Array]]:
    """Each choice, and the points just before and just after it changes."""
    on_line = at(line)
    for step in steps:
        value = np.broadcast_to(on_line[id(step)], line.shape)
        index = np.flatnonzero(value[1:] != value[:-1])
        if not index.size:
            continue
        low, high, first = line[index], line[index + 1], value[index]
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            same = np.broadcast_to(at(middle)[id(step)], middle.shape) == first
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        yield step, low, high


def _operations(root: Node) -> list[Node]:
    """The operations of an expression, operands first; at most `MOST`, those next to the root."""
    chosen: dict[int, Node] = {}
    waiting = [root]
    while waiting and len(chosen) < MOST:
        node = waiting.pop(0)
        if node.operands and id(node) not in chosen:
            chosen[id(node)] = node
            waiting.extend(node.operands)
    order: list[Node] = []
    seen: set[int] = set()

    def visit(node: Node) -> None:
        if id(node) in chosen and id(node) not in seen:
            seen.add(id(node))
            for each in node.operands:
                visit(each)
            order.append(node)

    visit(root)
    return order


def _values(order: list[Node], known: dict[int, Any]) -> dict[int, Array]:
    """The values of the operations, for these values of the variables."""
    values = dict(known)
    for node in order:
        operands = [
            np.asarray(each.value) if each.value is not None else values[id(each)]
            for each in node.operands
        ]
        assert node.function is not None
        values[id(node)] = np.asarray(node.function(*operands))
    return values
