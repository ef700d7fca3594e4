"""Which operations of a graph are one kernel of the compiled program.

No compiler is run: this approximates what all of them do.  An operation that is elementwise, or
only moves data, is fused with its consumers, without writing to memory in between; a reduction is
fused with its producers; a product, a sort or a factorization is a kernel of its own, and ends the
kernel before it.  Two elementwise operations therefore share a kernel if one feeds the other and no
kernel of another kind lies between them.  A value that several operations slice or rearrange, each
differently, is written to memory first: a tree of such levels is not one kernel.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf, prod
from typing import Any

from depth.counts import contracted, matrices, nbytes, shape, size
from depth.graph import START, Block, Branches, Call, Node, Scan, While
from depth.kernels import Choice, Kernel, Loop, Program, Recurrence
from depth.primitives import primitive

HOLDERS = frozenset(
    {"unknown", "call", "derivative rule", "loop", "branch", "program", "reference"}
)
FUSED = frozenset({"elementwise", "move", "random"})
CONVOLUTION = "conv_general_dilated"
ONE_KERNEL = "fused_scan", "fused_solve"  # recurrences, of `deeppcr.lower.gpu.fused`
ONE_FUNCTION = "one_function"  # a loop, of `deeppcr.lower.cpu`
# The cost of an operation depends on its class more than on its primitive.
CLASS_OF_KIND = {
    "elementwise": "arithmetic",
    "random": "transcendental",
    "cumulative": "cumulative",
    "product": "product",
    "factorization": "cumulative",
    "sort": "cumulative",
}
SMALL = 300  # operations, up to which a program is inlined where it is called
FUNCTION = 12  # additions in a row, which take as long as one exponential function
VECTOR = 8  # entries of float32 that a CPU sums up at once
WHOLE = 64  # bytes of a vector of a processor, whose operations take as long as those of one entry
IN_A_ROW = 16  # additions of a longer sum wait for each other less
TERM, TERMS = 3, 6  # waits of a term of a product that is written out, and terms that wait
NAIVE = 9  # entries of the result of a product up to which a CPU calls no library
BY_ENTRY = frozenset(("sin", "cos", "tan", "pow", "acos", "asin", "atan2", "digamma", "lgamma"))


class Kernels:
    """Turns graphs into programs, each once."""

    def __init__(self) -> None:
        self._programs: dict[Block, Program] = {}
        self._sizes: dict[Block, int] = {}

    def program(self, block: Block) -> Program:
        """The program of a graph."""
        if block not in self._programs:
            self._programs[block] = self._grouped(*self._flat(block))
        return self._programs[block]

    def _size(self, block: Block) -> int:
        """The number of operations of a graph, including called programs."""
        if block not in self._sizes:
            held: list[Any] = [node.transfer for node in block.nodes]
            called = [transfer.block for transfer in held if isinstance(transfer, Call)]
            self._sizes[block] = len(block.nodes) + sum(map(self._size, called))
        return self._sizes[block]

    def _grouped(self, nodes: list[Node], ends: list[int]) -> Program:
        parts: Counter[Any] = Counter()
        for node in nodes:
            if node.transfer:
                parts[self._part(node)] += getattr(node.transfer, "times", 1)
        return Program(tuple(Counter(fuse(nodes, ends)).items()), tuple(parts.items()))

    def _part(self, node: Node) -> Loop | Choice | Recurrence | Program:
        transfer: Any = node.transfer
        match transfer:
            case Call(block) if node.equation.primitive.name in ONE_KERNEL:
                return _recurrence(node.equation, self.program(block))
            case Call(block) if node.equation.primitive.name == ONE_FUNCTION:
                program = self.program(block)
                parts = tuple(
                    (replace(part, whole=True) if isinstance(part, Loop) else part, count)
                    for part, count in program.parts
                )
                return replace(program, parts=parts)
            case Call(block):
                return self.program(block)
            case Branches(blocks):
                return Choice(tuple(map(self.program, blocks)))
            case Scan(trips=trips, unroll=unroll):
                return Loop(trips, self._step(transfer), unroll=unroll)
            case While(condition, body, trips=trips, proven=proven):
                nodes, ends = self._flat(body)
                state = range(1 + transfer.body_consts, 1 + body.inputs)
                inside = replace(self.program(body), path=_path(nodes, state, ends))
                return Loop(trips, inside, self.program(condition), proven)
        raise TypeError(f"no such transfer: {type(transfer).__name__}")

    def _step(self, scan: Scan) -> Program:
        """A step of a scan without what is the same in all of them.

        It copies each slice that a separate kernel reads or writes.
        """
        nodes, ends = self._flat(scan.block)
        known = {START, *range(1, 1 + scan.consts)}
        moving = []
        for node in nodes:
            if known.issuperset(node.operands):
                known.update(node.results)
            if not known.issuperset(node.results):
                moving.append(node)
        program, jaxpr = self._grouped(moving, ends), scan.block.jaxpr
        state = range(1 + scan.consts, 1 + scan.consts + scan.carry)
        path = _path(nodes, state, ends[: scan.carry])
        alone = [node for node in nodes if _kind(node) not in FUSED and _kind(node) != "reduction"]
        read = {slot for node in alone for slot in node.operands}
        made = {slot for node in alone for slot in node.results}
        used = {slot for node in nodes for slot in node.operands} | set(ends[: scan.carry])
        first = 1 + scan.consts + scan.carry
        scanned = [(slot, jaxpr.invars[slot - 1]) for slot in range(first, scan.block.inputs + 1)]
        stacked = list(zip(ends[scan.carry :], jaxpr.outvars[scan.carry :], strict=False))
        copies = Counter(
            _copy(variable)
            for slots, part in ((scanned, read), (stacked, made))
            for slot, variable in slots
            if slot in part
        )
        stacks = tuple(nbytes(variable) for slot, variable in stacked if slot in used - made)
        read_in = sum(nbytes(variable) for _, variable in scanned)
        written = sum(nbytes(variable) for _, variable in stacked)
        kernels = *program.kernels, *copies.items()
        return Program(kernels, program.parts, stacks, read_in, written, path)

    def _flat(self, block: Block) -> tuple[list[Node], list[int]]:
        """The nodes of a graph, with small programs inlined, and the slots of the results.

        A program that does nothing but call another one is that.
        """
        nodes: list[Node] = []
        slots = block.slots

        def add(block: Block, place: dict[int, int]) -> None:
            nonlocal slots
            most = SMALL if len(block.nodes) > 1 else inf
            for node in block.nodes:
                operands, call = tuple(place[slot] for slot in node.operands), node.transfer
                own = node.equation.primitive.name in (*ONE_KERNEL, ONE_FUNCTION)
                if (
                    isinstance(call, Call)
                    and not own
                    and call.times == 1
                    and self._size(call.block) <= most
                ):
                    sources = [START if at is None else operands[at] for at in call.sources]
                    inner = dict(enumerate([START, *sources]))
                    add(call.block, inner)
                    results = tuple(inner[call.block.ends[end]] for end in call.results)
                else:
                    results = tuple(range(slots, slots + len(node.results)))
                    slots += len(results)
                    nodes.append(node._replace(operands=operands, results=results))
                place.update(zip(node.results, results, strict=True))

        place = {slot: slot for slot in range(block.inputs + 1)}
        add(block, place)
        return nodes, [place[slot] for slot in block.ends]


def _recurrence(equation: Any, loop: Program) -> Recurrence:
    """A recurrence that is one kernel, by what its equation says of a step."""
    own = equation.params["kernel"]
    moved = sum(map(nbytes, [*equation.invars, *equation.outvars]))
    work = (("arithmetic", own.instructions),)
    kernel = Kernel("own", str(equation.outvars[0].aval.dtype), work, moved)
    return Recurrence(own.waits, kernel, loop)


def _path(nodes: list[Node], starts: Iterable[int], ends: Iterable[int]) -> int:
    """Operations in a row from any of these values to any of those."""
    waits = dict.fromkeys(starts, 0)
    for node in nodes:
        if before := [waits[slot] for slot in node.operands if slot in waits]:
            own = 0 if node.transfer else _waits(node.equation)
            waits.update(dict.fromkeys(node.results, max(before) + own))
    return max((waits[slot] for slot in ends if slot in waits), default=0)


def _copy(variable: Any) -> Kernel:
    moved = 2 * nbytes(variable)
    return Kernel("move", str(variable.aval.dtype), (), moved, apart=moved)


def fuse(nodes: list[Node], outputs: list[int]) -> Iterator[Kernel]:
    """The kernels of a straight line of nodes."""
    kinds = [_kind(node) for node in nodes]
    maker = {slot: k for k, node in enumerate(nodes) for slot in node.results}
    readers: dict[int, set[int]] = defaultdict(set)
    cuts: Counter[int] = Counter()  # of a value: operations that slice or rearrange it
    for k, node in enumerate(nodes):
        known = primitive(node.equation)
        for slot in set(node.operands):
            readers[slot].add(k)
            cuts[slot] += known.cuts or known.reorders

    # A node's stage: the number of separate kernels before it on the longest path; then as late
    # as its readers allow.
    stage: list[int] = []
    after: dict[int, int] = {}
    for node, kind in zip(nodes, kinds, strict=True):
        stage.append(max((after.get(slot, 0) for slot in node.operands), default=0))
        for slot in node.results:
            after[slot] = stage[-1] + (kind not in FUSED or cuts[slot] > 1)
    returned = set(outputs)
    for k in reversed(range(len(nodes))):
        results = nodes[k].results
        waiting = {reader for slot in results for reader in readers[slot]}
        written = any(slot in returned or cuts[slot] > 1 for slot in results)
        if kinds[k] in FUSED and waiting and not written:
            stage[k] = max(stage[k], min(stage[reader] for reader in waiting))

    group = list(range(len(nodes)))

    def root(k: int) -> int:
        while group[k] != k:
            group[k] = group[group[k]]
            k = group[k]
        return k

    for k, node in enumerate(nodes):
        for slot in node.operands if kinds[k] in FUSED or kinds[k] == "reduction" else ():
            made = maker.get(slot)
            if made is None or kinds[made] not in FUSED or cuts[slot] > 1:
                continue
            if stage[made] == stage[k]:
                group[root(made)] = root(k)

    members: dict[int, list[int]] = defaultdict(list)
    for k, node in enumerate(nodes):
        if node.transfer is None:
            members[root(k)].append(k)
    read_by = {slot: {root(reader) for reader in found} for slot, found in readers.items()}
    torn = {slot for slot, count in cuts.items() if count > 1}
    for leader, inside in members.items():
        kernel = _kernel([nodes[k] for k in inside], leader, read_by, returned, torn)
        if kernel:
            yield kernel


def _kind(node: Node) -> str:
    kind = primitive(node.equation).kind
    if node.transfer or kind in HOLDERS:
        return "own"
    return "move" if _is_reshape(node.equation) else kind


def _is_reshape(equation: Any) -> bool:
    """Whether a reduction is over axes of size 1 only."""
    reduces = equation.primitive.name.startswith("reduce_")
    return reduces and size(equation.invars[0]) == size(equation.outvars[0])


def _kernel(
    nodes: list[Node], leader: int, read_by: dict[int, set[int]], ends: set[int], torn: set[int]
) -> Kernel | None:
    """The kernel of fused nodes; None if they only compute an index."""
    atoms = [atom for node in nodes for atom in (*node.equation.invars, *node.equation.outvars)]
    if all(primitive(node.equation).free for node in nodes) or all(map(_is_index, atoms)):
        return None
    by = {slot: node.equation.primitive.name for node in nodes for slot in node.results}
    readers = Counter(slot for node in nodes for slot in set(node.operands))
    read: dict[Any, int] = {}
    reach: dict[int, dict[Any, int]] = {}  # what each result is made of, and its bytes
    operations: Counter[str] = Counter()
    waits: Counter[int] = Counter()  # the operations in a row that make each result
    vectors: Counter[str] = Counter()
    computed, sliced, is_cut = set[int](), set[int](), False
    written = apart = results = 0
    pieces, dtype, kind = 1, "", ""
    for node in nodes:
        equation, name = node.equation, node.equation.primitive.name
        known, own = primitive(equation), _kind(node)
        operations.update(_operations(equation, own))
        wait = _waits(equation)
        wait += max((waits[slot] for slot in node.operands), default=0)
        vectors.update(_vectors(equation, own))
        # What is sliced after it was computed is computed entry by entry.
        if known.cuts and name not in ("gather", "dynamic_slice"):
            sliced.add(node.operands[0])
        is_cut |= (known.cuts or known.reorders) and not computed.isdisjoint(node.operands)
        if known.kind == "elementwise" or not computed.isdisjoint(node.operands):
            computed.update(node.results)
        if _adds_vectors(equation) and by.get(node.operands[0]) == "mul":  # a product, written out
            operations["contraction"] += operations.pop("reduction", 0)
        if own not in FUSED or not kind:
            first = equation.invars[0] if equation.invars else None
            kind, dtype = own, str(getattr(getattr(first, "aval", None), "dtype", ""))
        if name == "dot_general":
            kind, pieces = _product(equation)
        elif name == CONVOLUTION:
            kind = "convolution"
        elif own == "factorization":
            pieces = max(1, prod(shape(first)[:-2]))
        inputs = _inputs(node, reach)
        for key, amount in inputs.items():
            if key not in by:
                read[key] = max(read.get(key, 0), amount)
        for slot, atom in zip(node.results, equation.outvars, strict=False):
            amount, waits[slot] = nbytes(atom), wait
            if known.updates is not None:  # in place
                amount = min(amount, nbytes(equation.invars[known.updates]))
            leaves = slot in ends or bool(read_by.get(slot, set()) - {leader})
            reach[slot] = inputs
            is_dear = known.transcendental and readers[slot] > 1  # to be computed twice
            if leaves or is_dear:
                written += amount * leaves
                apart += sum(inputs.values()) + amount
                results += 1
                reach[slot] = {slot: amount}
    if operations["move"]:  # values that are read out of order are computed out of order, too
        operations["move"] += operations.pop("arithmetic", 0)
    if kind == "transposed product":
        rearranged = sum(_rearranged(node.equation) for node in nodes)
        operations["move"] += rearranged
        vectors["move"] += rearranged
    moved, by_class = sum(read.values()) + written, tuple(sorted(operations.items()))
    sizes = moved, pieces, max(results, 1), max(apart, moved)
    if is_cut or len(sliced) > 1 or not torn.isdisjoint(computed):
        vectors["by entry"] += vectors.pop("transcendental", 0)
    waited = max(waits.values(), default=0)
    return Kernel(kind, dtype, by_class, *sizes, waited, tuple(sorted(vectors.items())))


def _inputs(node: Node, reach: dict[int, dict[Any, int]]) -> dict[Any, int]:
    """The inputs of a node of a kernel that come from outside, or were written before."""
    equation, known = node.equation, primitive(node.equation)
    inputs: dict[Any, int] = {}
    for position, (slot, atom) in enumerate(zip(node.operands, equation.invars, strict=False)):
        if slot in reach:
            inputs |= reach[slot]
            continue
        amount = nbytes(atom)
        if position == 0 and known.cuts:
            amount = min(amount, sum(map(nbytes, equation.outvars)))
        if position == 0 and known.updates is not None:
            amount = min(amount, nbytes(equation.invars[known.updates]))
        inputs[(START, id(atom)) if slot == START else slot] = amount
    return inputs


def _operations(equation: Any, kind: str) -> dict[str, int]:
    """The operations of an equation, by class."""
    name, known = equation.primitive.name, primitive(equation)
    if _is_reshape(equation):
        return {}
    if known.reorders or (name == "slice" and not _is_straight(equation)):
        return {"move": sum(map(size, equation.outvars))}
    if known.transcendental:
        return {"transcendental": size(equation.outvars[0])}
    work = known.work(equation)
    if name == CONVOLUTION:
        groups = max(equation.params["feature_group_count"], equation.params["batch_group_count"])
        return {"convolution": work, "expanded": work * (groups - 1)}
    return {CLASS_OF_KIND.get(kind, "reduction"): work} if work else {}


def _waits(equation: Any) -> int:
    """The additions that take as long as an equation whose operands are ready."""
    known, name = primitive(equation), equation.primitive.name
    if known.transcendental:
        return FUNCTION
    if name == "dot_general":
        return TERM * min(contracted(equation), TERMS)
    if known.kind == "reduction":
        return min(size(equation.invars[0]) // max(size(equation.outvars[0]), 1), IN_A_ROW)
    return int(known.kind == "elementwise")


def _vectors(equation: Any, kind: str) -> dict[str, int]:
    """The operations of an equation, by class, in whole vectors of a processor."""
    name, known = equation.primitive.name, primitive(equation)
    if _is_reshape(equation) or known.free:
        return {}
    if name == "dot_general":
        pieces, rows, columns = matrices(equation)
        terms = contracted(equation)
        if not _is_written_out(equation):
            return {"product": 2 * pieces * rows * columns * terms}
        rows, inner = (rows * terms, columns) if columns > 1 else (rows, terms)
        return {"contraction": 2 * pieces * rows * _whole(inner, equation.outvars[0])}
    if name in ("transpose", "rev", "gather", "scatter"):
        return {"move": _whole(size(equation.outvars[0]), equation.outvars[0])}
    if known.kind == "move" and not (known.cuts or known.reorders):
        return {}
    if known.kind == "reduction":
        axes, operand = equation.params["axes"], equation.invars[0]
        if len(shape(operand)) - 1 in axes:
            return {"reduction": size(operand)}
        return {"arithmetic": _whole(size(operand), operand)}
    if kind in ("move", "elementwise", "random"):
        entries = max(map(size, equation.outvars), default=0)
        by = "arithmetic"
        if known.transcendental or kind == "random":
            by = "by entry" if name in BY_ENTRY else "transcendental"
            entries = entries if by == "by entry" else _whole(entries, equation.outvars[0])
        else:
            entries = _whole(entries, equation.outvars[0])
        return {by: entries}
    return _operations(equation, kind)


def _whole(entries: int, atom: Any) -> int:
    """The entries of whole vectors, which take as long."""
    lanes = max(WHOLE // max(getattr(atom.aval.dtype, "itemsize", 4), 1), 1)
    return -(-entries // lanes) * lanes


def _is_written_out(equation: Any) -> bool:
    """Whether a CPU calls no library for a product: one of vectors, or of few results."""
    _, rows, columns = matrices(equation)
    return min(rows, columns, contracted(equation)) <= 1 or rows * columns <= NAIVE


def _adds_vectors(equation: Any) -> bool:
    """Whether an equation is a sum of vectors, and not one along the last axis, entry by entry."""
    if equation.primitive.name != "reduce_sum":
        return False
    sizes = shape(equation.invars[0])
    return len(sizes) - 1 not in equation.params["axes"] or sizes[-1] <= VECTOR


def _is_straight(equation: Any) -> bool:
    """Whether a slice is contiguous: whole axes except the first."""
    full, part = shape(equation.invars[0]), shape(equation.outvars[0])
    strides = equation.params["strides"] or (1,) * len(full)
    return full[1:] == part[1:] and set(strides) <= {1}


def _is_index(variable: Any) -> bool:
    """Whether a value is one integer or boolean, which a loop computes outside its kernels."""
    dtype = getattr(variable.aval, "dtype", None)
    return size(variable) == 1 and getattr(dtype, "kind", "") in "iub"


def _product(equation: Any) -> tuple[str, int]:
    """The kind of a product, and the number of products in its batch."""
    (on_left, on_right), (batch, _) = equation.params["dimension_numbers"]
    pieces, _, _ = matrices(equation)
    if _is_written_out(equation):
        return "vector product", pieces
    straight = max(on_left) == len(shape(equation.invars[0])) - 1 and min(on_right) == len(batch)
    return "product" if straight else "transposed product", pieces


def _rearranged(equation: Any) -> int:
    """The elements that a product with transposed operands has to bring in order."""
    if equation.primitive.name != "dot_general":
        return 0
    (on_left, on_right), (batch, _) = equation.params["dimension_numbers"]
    left, right = equation.invars
    is_left = max(on_left) < len(shape(left)) - 1
    return size(left) * is_left + size(right) * (min(on_right) > len(batch))
