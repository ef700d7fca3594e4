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

from depth import work
from depth.counts import nbytes, shape
from depth.graph import START, Block, Branches, CalledProgram, Node, Scan, While
from depth.kernels import Kernel, KernelChoice, KernelLoop, KernelProgram, OneKernelLoop, Part
from depth.primitives import primitive

HOLDERS = frozenset(
    {"unknown", "call", "derivative rule", "loop", "branch", "program", "reference"}
)
FUSED = frozenset({"elementwise", "move", "random"})
ONE_KERNEL = "kernel_call"  # a recurrence, of `deeppcr.lower.gpu.fused`
ONE_FUNCTION = "one_function"  # a loop, of `deeppcr.lower.cpu`
SMALL = 300  # operations, up to which a program is inlined where it is called


class Kernels:
    """Turns graphs into programs, each once."""

    def __init__(self) -> None:
        self._programs: dict[Block, KernelProgram] = {}
        self._sizes: dict[Block, int] = {}

    def program(self, block: Block) -> KernelProgram:
        """The program of a graph."""
        if block not in self._programs:
            self._programs[block] = self._grouped(*self._flat(block))
        return self._programs[block]

    def _size(self, block: Block) -> int:
        """The number of operations of a graph, including called programs."""
        if block not in self._sizes:
            held: list[Any] = [node.transfer for node in block.nodes]
            called = [transfer.block for transfer in held if isinstance(transfer, CalledProgram)]
            self._sizes[block] = len(block.nodes) + sum(map(self._size, called))
        return self._sizes[block]

    def _grouped(self, nodes: list[Node], ends: list[int]) -> KernelProgram:
        parts: Counter[Any] = Counter()
        for node in nodes:
            if node.transfer:
                parts[self._part(node)] += getattr(node.transfer, "times", 1)
        return KernelProgram(tuple(Counter(fuse(nodes, ends)).items()), tuple(parts.items()))

    def _part(self, node: Node) -> Part:
        transfer: Any = node.transfer
        match transfer:
            case CalledProgram(block) if node.equation.primitive.name == ONE_KERNEL:
                return _recurrence(node.equation, self.program(block))
            case CalledProgram(block) if node.equation.params.get("name") == ONE_FUNCTION:
                program = self.program(block)
                parts = tuple(
                    (replace(part, whole=True) if isinstance(part, KernelLoop) else part, count)
                    for part, count in program.parts
                )
                return replace(program, parts=parts)
            case CalledProgram(block):
                return self.program(block)
            case Branches(blocks):
                return KernelChoice(tuple(map(self.program, blocks)))
            case Scan(trips=trips, unroll=unroll):
                return KernelLoop(trips, self._step(transfer), unroll=unroll)
            case While(condition, body, trips=trips, proven=proven):
                nodes, ends = self._flat(body)
                state = range(1 + transfer.body_consts, 1 + body.inputs)
                inside = replace(self.program(body), path=_path(nodes, state, ends))
                return KernelLoop(trips, inside, self.program(condition), proven)
        raise TypeError(f"no such transfer: {type(transfer).__name__}")

    def _step(self, scan: Scan) -> KernelProgram:
        """A step of a scan without what is the same in all of them.

        It copies each slice that a separate kernel reads or writes.
        """
        nodes, ends = self._flat(scan.block)
        constant = {START, *range(1, 1 + scan.consts)}
        moving = []
        for node in nodes:
            if constant.issuperset(node.operands):
                constant.update(node.results)
            if not constant.issuperset(node.results):
                moving.append(node)
        program = self._grouped(moving, ends)
        jaxpr = scan.block.jaxpr
        state = range(1 + scan.consts, 1 + scan.consts + scan.carry)
        path = _path(nodes, state, ends[: scan.carry])
        alone = [node for node in nodes if _kind(node) not in FUSED and _kind(node) != "reduction"]
        read = set[int]().union(*(node.operands for node in alone))
        made = set[int]().union(*(node.results for node in alone))
        used = set(ends[: scan.carry]).union(*(node.operands for node in nodes))
        first = 1 + scan.consts + scan.carry
        scanned = [(slot, jaxpr.invars[slot - 1]) for slot in range(first, scan.block.inputs + 1)]
        stacked = list(zip(ends[scan.carry :], jaxpr.outvars[scan.carry :], strict=False))
        copies = Counter(_copy(variable) for slot, variable in scanned if slot in read)
        copies.update(_copy(variable) for slot, variable in stacked if slot in made)
        stacks = tuple(nbytes(variable) for slot, variable in stacked if slot in used - made)
        read_in = sum(nbytes(variable) for _, variable in scanned)
        written = sum(nbytes(variable) for _, variable in stacked)
        kernels = *program.kernels, *copies.items()
        return KernelProgram(kernels, program.parts, stacks, read_in, written, path)

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
                operands = tuple(place[slot] for slot in node.operands)
                call = node.transfer
                stays = node.equation.primitive.name == ONE_KERNEL
                stays |= node.equation.params.get("name") == ONE_FUNCTION
                if (
                    isinstance(call, CalledProgram)
                    and not stays
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


def _recurrence(equation: Any, loop: KernelProgram) -> OneKernelLoop:
    """A recurrence that is one kernel, by what its equation says of a step."""
    step = equation.params["kernel"]
    traffic = sum(map(nbytes, [*equation.invars, *equation.outvars]))
    work = (("arithmetic", step.instructions),)
    kernel = Kernel("own", str(equation.outvars[0].aval.dtype), work, traffic)
    return OneKernelLoop(step.waits, kernel, loop)


def _path(nodes: list[Node], starts: Iterable[int], ends: Iterable[int]) -> int:
    """Operations in a row from any of these values to any of those."""
    waits = dict.fromkeys(starts, 0)
    for node in nodes:
        if before := [waits[slot] for slot in node.operands if slot in waits]:
            wait = 0 if node.transfer else work.waits(node.equation)
            waits.update(dict.fromkeys(node.results, max(before) + wait))
    return max((waits[slot] for slot in ends if slot in waits), default=0)


def _copy(variable: Any) -> Kernel:
    traffic = 2 * nbytes(variable)  # read, and written
    return Kernel("move", str(variable.aval.dtype), (), traffic, apart=traffic)


def fuse(nodes: list[Node], outputs: list[int]) -> Iterator[Kernel]:
    """The kernels of a straight line of nodes."""
    kinds = [_kind(node) for node in nodes]
    maker: dict[int, int] = {}
    readers: dict[int, set[int]] = defaultdict(set)
    cuts: Counter[int] = Counter()  # of a value: operations that slice or rearrange it
    for k, node in enumerate(nodes):
        rules = primitive(node.equation)
        maker.update(dict.fromkeys(node.results, k))
        for slot in set(node.operands):
            readers[slot].add(k)
            cuts[slot] += rules.cuts or rules.reorders

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
        waiting = set[int]().union(*(readers[slot] for slot in results))
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
    read_by = {slot: set(map(root, nodes_of)) for slot, nodes_of in readers.items()}
    torn = {slot for slot, count in cuts.items() if count > 1}
    for leader, inside in members.items():
        kernel = _kernel([nodes[k] for k in inside], leader, read_by, returned, torn)
        if kernel:
            yield kernel


def _kind(node: Node) -> str:
    kind = primitive(node.equation).kind
    if node.transfer or kind in HOLDERS:
        return "own"
    return "move" if work.is_reshape(node.equation) else kind


def _kernel(
    nodes: list[Node], leader: int, read_by: dict[int, set[int]], ends: set[int], torn: set[int]
) -> Kernel | None:
    """The kernel of fused nodes; None if they only compute an index."""
    if all(primitive(node.equation).free for node in nodes) or all(map(_is_index, nodes)):
        return None
    by: dict[int, str] = {}
    readers: Counter[int] = Counter()
    for node in nodes:
        by.update(dict.fromkeys(node.results, node.equation.primitive.name))
        readers.update(set(node.operands))
    read: dict[Any, int] = {}
    reach: dict[int, dict[Any, int]] = {}  # what each result is made of, and its bytes
    operations: Counter[str] = Counter()
    waits: Counter[int] = Counter()  # the operations in a row that make each result
    vectors: Counter[str] = Counter()
    written = apart = results = 0
    pieces, dtype, kind = 1, "", ""
    for node in nodes:
        equation, name = node.equation, node.equation.primitive.name
        rules = primitive(equation)
        own_kind = _kind(node)
        operations.update(work.operations(equation, own_kind))
        wait = work.waits(equation)
        wait += max((waits[slot] for slot in node.operands), default=0)
        vectors.update(work.vectors(equation, own_kind))
        if (
            work.adds_vectors(equation) and by.get(node.operands[0]) == "mul"
        ):  # a product, written out
            operations["contraction"] += operations.pop("reduction", 0)
        if own_kind not in FUSED or not kind:
            first = equation.invars[0] if equation.invars else None
            kind = own_kind
            dtype = str(getattr(getattr(first, "aval", None), "dtype", ""))
        if name == "dot_general":
            kind, pieces = work.product_kind(equation)
        elif name == work.CONVOLUTION:
            kind = "convolution"
        elif own_kind == "factorization":
            pieces = max(1, prod(shape(first)[:-2]))
        inputs = _inputs(node, reach)
        for key, amount in inputs.items():
            if key not in by:
                read[key] = max(read.get(key, 0), amount)
        for slot, atom in zip(node.results, equation.outvars, strict=False):
            amount, waits[slot] = nbytes(atom), wait
            if rules.updates is not None:  # in place
                amount = min(amount, nbytes(equation.invars[rules.updates]))
            leaves = slot in ends or bool(read_by.get(slot, set()) - {leader})
            reach[slot] = inputs
            is_dear = rules.transcendental and readers[slot] > 1  # to be computed twice
            if leaves or is_dear:
                written += amount * leaves
                apart += sum(inputs.values()) + amount
                results += 1
                reach[slot] = {slot: amount}
    if operations["move"]:  # values that are read out of order are computed out of order, too
        operations["move"] += operations.pop("arithmetic", 0)
    if kind == "transposed product":
        rearranged = sum(work.rearranged(node.equation) for node in nodes)
        operations["move"] += rearranged
        vectors["move"] += rearranged
    traffic = sum(read.values()) + written
    by_class = tuple(sorted(operations.items()))
    sizes = traffic, pieces, max(results, 1), max(apart, traffic)
    if _is_by_entry(nodes, torn):
        vectors["by entry"] += vectors.pop("transcendental", 0)
    waited = max(waits.values(), default=0)
    return Kernel(kind, dtype, by_class, *sizes, waited, tuple(sorted(vectors.items())))


def _is_index(node: Node) -> bool:
    return all(map(work.is_index, (*node.equation.invars, *node.equation.outvars)))


def _is_by_entry(nodes: list[Node], torn: set[int]) -> bool:
    """Whether a CPU computes a kernel entry by entry, without vectors.

    XLA does where something is sliced after it was computed, as the gates of a cell. It also moves
    slices of several arrays behind what is computed of them.
    """
    computed, sliced = set[int](), set[int]()
    for node in nodes:
        rules = primitive(node.equation)
        depends = not computed.isdisjoint(node.operands)
        if depends and (rules.cuts or rules.reorders):
            return True
        if rules.cuts and node.equation.primitive.name not in ("gather", "dynamic_slice"):
            sliced.add(node.operands[0])
        if depends or rules.kind == "elementwise":
            computed.update(node.results)
    return len(sliced) > 1 or not torn.isdisjoint(computed)


def _inputs(node: Node, reach: dict[int, dict[Any, int]]) -> dict[Any, int]:
    """The inputs of a node of a kernel that come from outside, or were written before."""
    equation = node.equation
    rules = primitive(node.equation)
    inputs: dict[Any, int] = {}
    for position, (slot, atom) in enumerate(zip(node.operands, equation.invars, strict=False)):
        if slot in reach:
            inputs |= reach[slot]
            continue
        amount = nbytes(atom)
        if position == 0 and rules.cuts:
            amount = min(amount, sum(map(nbytes, equation.outvars)))
        if position == 0 and rules.updates is not None:
            amount = min(amount, nbytes(equation.invars[rules.updates]))
        inputs[(START, id(atom)) if slot == START else slot] = amount
    return inputs
