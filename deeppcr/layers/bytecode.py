"""What a Python function names: globals, attributes, imports; read from its bytecode, without running it."""

import dataclasses
import dis
import functools
import types
from collections.abc import Iterator, Sequence

Chain = tuple[str, ...]  # ("np", "random", "normal") for np.random.normal
CALLED = "()"  # the last of a chain that is called without arguments


@dataclasses.dataclass(frozen=True)
class Names:
    """The names in the code of a function, and of the functions inside it.

    Attributes:
        globals: names of globals and built-in functions, each with the attributes that follow it.
        lookups: those of whose attributes one is looked up by a name that is no part of the code; () for what is no global.
        cells: the same of variables that the function closes over.
        attributes: all other attributes.
        imports: modules that it imports, with dots.
        counters: attributes and globals to which it adds whole numbers, and which it reads nowhere else.
        catches: whether it catches exceptions.
    """

    globals: frozenset[Chain]
    lookups: frozenset[Chain]
    cells: frozenset[Chain]
    attributes: frozenset[str]
    imports: frozenset[str]
    counters: frozenset[str]
    catches: bool

    @property
    def read(self) -> frozenset[str]:
        """All names whose values it reads, other than to count."""
        asked = ["getattr"] if self.lookups else []
        return self.attributes.union(asked, *self.globals, *self.lookups, *self.cells)


_LOOKUPS = ("getattr", "hasattr")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
_CELL = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR")


@functools.lru_cache(4096)
def names_of(code: types.CodeType) -> Names:
    """The names in ``code``."""
    read: list[tuple[str, Chain]] = []
    counters: set[str] = set()
    imports: set[str] = set()
    catches = False
    for part in _with_inner(code):
        instructions = [
            i
            for i in dis.get_instructions(part)
            if i.opname not in ("CACHE", "EXTENDED_ARG", "NOP")
        ]
        skipped = set()
        for start in range(len(instructions)):
            if counted := _counts(instructions[start : start + 6]):
                counters.add(counted)
                skipped |= {start + 1, start + 5}
        asked = -1  # the instruction whose value `getattr` is about to be asked for
        following = False  # whether the instruction before named something of which this one takes an attribute
        for at, instruction in enumerate(instructions):
            name, opname = str(instruction.argval), instruction.opname
            follows, following = (
                following,
                opname in _GLOBAL[:2] + _CELL or (following and opname in _ATTRIBUTE[:2]),
            )
            if at in skipped:
                following = False
            elif opname in _GLOBAL and name in _LOOKUPS and at + 1 < len(instructions):
                asked = at + 1
                read.append(("lookup", ()))
            elif opname in _GLOBAL and at == asked:
                read[-1] = "lookup", (name,)
            elif opname in _GLOBAL:
                read.append(("global", (name,)))
            elif opname in _CELL:
                read.append(("cell", (name,)))
            elif opname in _ATTRIBUTE and follows:
                kind, chain = read[-1]
                read[-1] = kind, (*chain, name)
            elif follows and _is_call_of_nothing(instructions[at : at + 3]):
                kind, chain = read[-1]
                read[-1] = kind, (*chain, CALLED)
            elif opname in _ATTRIBUTE or opname == "IMPORT_FROM":
                read.append(("attribute", (name,)))
            elif opname == "IMPORT_NAME":
                imports.add(name)
            elif opname == "PUSH_EXC_INFO":
                after = instructions[at + 1].opname if at + 1 < len(instructions) else ""
                catches = catches or after == "POP_TOP"  # "except:"
            elif opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH"):
                catches = True
    kinds = {
        kind: frozenset(chain for of, chain in read if of == kind)
        for kind in ("global", "lookup", "cell", "attribute")
    }
    attributes = frozenset(chain[0] for chain in kinds["attribute"])
    return Names(
        kinds["global"],
        kinds["lookup"],
        kinds["cell"],
        attributes,
        frozenset(imports),
        frozenset(counters),
        catches,
    )


def _counts(instructions: Sequence[dis.Instruction]) -> str:
    """The attribute to which six instructions add a whole number: ``owner.name += 1``; "" if they do something else."""
    if [i.opname for i in instructions] != [
        "COPY",
        "LOAD_ATTR",
        "LOAD_CONST",
        "BINARY_OP",
        "SWAP",
        "STORE_ATTR",
    ]:
        return ""
    _, load, constant, operation, _, store = instructions
    adds = (
        type(constant.argval) is int and operation.argrepr == "+=" and load.argval == store.argval
    )
    return str(load.argval) if adds else ""


def _is_call_of_nothing(instructions: Sequence[dis.Instruction]) -> bool:
    """Whether instructions call what is on the stack without arguments."""
    calls = [i for i in instructions if i.opname not in ("PUSH_NULL", "PRECALL")]
    return bool(calls) and calls[0].opname == "CALL" and calls[0].argval == 0


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)
