"""The Python text of a program for `scan`: it runs as it stands, and it is what is run here.

It defines ``arguments`` (the weights, the initial state, the floating input), ``oracle``, which is
`jax.lax.scan`, ``ours``, which is deeppcr's, and ``observe(scan, *arguments)``, a dict of results.
"""

import random

from tests.fuzz.operations import RULES
from tests.fuzz.scans import NAMED, REVERSE, Scan, nested

HEAD = """\
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify, io_callback
from jax.sharding import PartitionSpec as P

import deeppcr

jax.config.update("jax_enable_x64", True)
if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)

F = jnp.{dtype}
L = {length}
seen = []  # what effects leave behind

"""

MAIN = """
if __name__ == "__main__":
    for scan in (oracle, ours):
        seen.clear()
        with jax.disable_jit({disabled} and scan is ours):
            print({run}(partial(observe, scan))(*arguments))
        jax.effects_barrier()
        print(seen)
"""

INPUTS = {
    "u": "u",
    "i": "(3 * jnp.arange(L) // 2) % 3",
    "flag": "jnp.arange(L) % 3 != 1",
    "key": "jax.random.split(jax.random.key(7), L)",
}

VALUE = """
    last, ys = run(scan, w, init, u)
    return {"last": last, "ys": ys}
"""
GRADIENT = """
    value, by = jax.value_and_grad(partial(loss, scan), WRT)(w, init, u)
    return {"loss": value} | named(by)
"""
VMAPPED = 'jax.vmap(one, MAPPED, -1, axis_name="examples")(*many(w, init, u))'
ON_A_MESH = "on_a_mesh(one, *many(w, init, u))"


def around(tried: str, call: str) -> str:
    """The same of each of several examples."""
    inside = tried.replace("\n    ", "\n        ")
    return f"\n    def one(w, init, u):{inside}\n    return {call}\n"


TRIED = {  # by kind of check
    "value": VALUE,
    "value, eager": VALUE,
    "vmapped": around(VALUE, VMAPPED),
    "on a mesh": around(VALUE, ON_A_MESH),
    "gradient": GRADIENT,
    "vmapped gradient": around(GRADIENT, VMAPPED),
    "gradient on a mesh": around(GRADIENT, ON_A_MESH),
    "nested": """
    def again(init, _):
        last, ys = run(scan, w, init, u)
        return last, jax.tree.map(jnp.asarray, ys)

    last, ys = lax.scan(again, init, None, 2)
    return {"last": last, "ys": jax.tree.map(lambda y: jnp.moveaxis(y, 0, -1), ys)}
""",
    "jvp": """
    def one(*moved):
        last, ys = run(scan, *put(moved, w, init, u))
        return {"last": last, "ys": [ys[i] for i in FLOATING]}

    primals = taken(w, init, u)
    return jax.jvp(one, primals, along(primals))[1]
""",
    "pullback": """
    def one(*moved):
        last, ys = run(scan, *put(moved, w, init, u))
        return {"last": last, "ys": [ys[i] for i in FLOATING]}

    values, pull = jax.vjp(one, *taken(w, init, u))
    gradients, push = jax.vjp(pull, along(values))
    return push(along(gradients))[0]
""",
    "remat": """
    return named(jax.grad(jax.checkpoint(partial(loss, scan)), WRT)(w, init, u))
""",
    "jvp of gradient": """
    def gradient(*moved):
        return jax.grad(partial(loss, scan), WRT)(*put(moved, w, init, u))

    primals = taken(w, init, u)
    return named(jax.jvp(gradient, primals, along(primals))[1])
""",
    "gradient of gradient": """
    def slope(*args):
        by = jax.grad(partial(loss, scan), WRT)(*args)
        pairs = zip(jax.tree.leaves(along(by)), jax.tree.leaves(by), strict=True)
        return sum(jnp.vdot(a, b) for a, b in pairs)

    return named(jax.grad(slope, WRT)(w, init, u))
""",
}
MESH = """

def on_a_mesh(one, *arguments):
    mesh = jax.make_mesh((2,), ("examples",), axis_types=(jax.sharding.AxisType.Auto,))

    def spec(a, moves):
        return P(*[None] * (a.ndim - 1), "examples") if moves else P()

    def shard(*arguments):
        pairs = zip(arguments, MAPPED, strict=True)
        own = [jax.tree.map(lambda a: a[..., 0], x) if m is not None else x for x, m in pairs]
        return jax.tree.map(lambda a: jnp.asarray(a)[..., None], one(*own))

    pairs = zip(arguments, MAPPED, strict=True)
    specs = tuple(jax.tree.map(lambda a: spec(a, m is not None), x) for x, m in pairs)
    shapes = jax.eval_shape(jax.vmap(one, MAPPED, -1, axis_name="examples"), *arguments)
    out = jax.tree.map(lambda a: spec(a, True), shapes)
    return jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=specs, out_specs=out))(*arguments)
"""
INNER = """
def inner(scan, method="auto"):
    return partial(deeppcr.scan, method=method) if scan is ours else scan

"""


def text(program: Scan) -> str:
    """The whole program."""
    matrices = [node for node in program.used if "{w}" in node.does.text]
    vectors = [node for node in program.used if "{c}" in node.does.text]
    weights = {}
    for number, node in enumerate([*matrices, *vectors]):
        shape = (program.n, program.n) if node in matrices else (program.n,)
        digits = random.Random(f"{program.salt} {node.name}")
        numbers = [round(digits.uniform(-0.9, 0.9), 1) for _ in range(shape[0] ** len(shape))]
        weights[node.name] = (f"w[{number}]", f"jnp.array({nested(numbers, shape)}, F)")
    lines = [HEAD.format(dtype=program.dtype, length=program.length)]
    lines += [
        RULES[name] + "\n" for name in sorted({node.does.rule for node in program.used} - {""})
    ]
    lines.append(f"w = ({''.join(literal + ', ' for _, literal in weights.values())})\n")
    init = ", ".join(f'"{leaf.name}": {leaf.initial(program.salt)}' for leaf in program.leaves)
    lines.append(f"init = {{{init}}}\n")
    if program.batch:
        lines.append("init = jax.tree.map(lambda a: jnp.stack([a, (0.7 * a).astype(F)]), init)\n")
    lines.append(
        f"u = jnp.sin(1.3 * jnp.arange({program.n}.0 * L)).reshape(L, {program.n}).astype(F)\n"
    )
    if program.infinite == "u":
        lines.append(f"u = u.at[L // 2, {program.salt % program.n}].set(jnp.inf)\n")
    if program.infinite == "init":
        first = program.leaves[0].name
        lines.append(f'first = init["{first}"]\n')
        lines.append(
            f'init["{first}"] = first.reshape(-1).at[0].set(-jnp.inf).reshape(first.shape)\n'
        )
    if "initial_guess=guess" in program.method or "initial_guess=spoiled" in program.method:
        lines.append("guess = jax.tree.map(lambda a: jnp.ones((L, *a.shape), F), init)\n")
        lines.append("spoiled = jax.tree.map(lambda a: a.at[L // 2].set(jnp.inf), guess)\n")
    lines += [
        "arguments = w, init, u\n",
        "\n",
        _run(program, {name: index for name, (index, _) in weights.items()}),
        _helpers(program),
    ]
    lines.append(f"\ndef observe(scan, w, init, u):{TRIED[program.check]}\n{_ours(program)}")
    run = "" if not program.jitted else "jax.jit"
    return "".join(lines) + MAIN.format(
        run=f"checkify.checkify({run})" if program.is_checked and not run else run,
        disabled=program.disabled,
    )


def _run(program: Scan, weights: dict[str, str]) -> str:
    """The scan itself."""
    inside = [f'{name} = x["u"]' for name in ["u"] if name in program.vectors]
    inside += [
        f"{leaf.name} = {leaf.vector(program.n)}"
        for leaf in program.leaves
        if leaf.name in program.vectors
    ]
    for node in program.used:
        weight = weights.get(node.name)
        names = {"a": node.a, "b": node.b, "n": program.n, "w": weight, "c": weight}
        if node.does.statement:
            inside.append(node.does.statement.format(**names))
        inside.append(f"{node.name} = {node.does.text.format(**names) or node.a}")
    new = ", ".join(f'"{leaf.name}": {leaf.update(program.n)}' for leaf in program.leaves)
    inside.append(f"new = {{{new}}}")
    ys = "".join(f"{_output(output)}, " for output in program.outputs)
    inside.append("return new, new" if program.through == "solve" else f"return new, ({ys})")
    body = "".join(f"        {line}\n" for line in inside)
    needed = [name for name in INPUTS if f'x["{name}"]' in body]
    xs = "{" + ", ".join(f'"{name}": {INPUTS[name]}' for name in needed) + "}" if needed else "None"
    wrap = f"    step = jax.{program.wrapped}(step)\n" if program.wrapped else ""
    wrap += "    step = jax.vmap(step, (0, None))\n" if program.batch else ""
    ending = ", reverse=True" if program.reverse else ""
    scan = f"scan(step, init, {xs}, L{ending})"
    if program.through == "solve":
        names = ", ".join(f'ys["{leaf.name}"]' for leaf in program.leaves)
        result = f"    last, ys = {scan}\n    return last, ({names},)\n"
    else:
        result = f"    return {scan}\n"
    return f"\ndef run(scan, w, init, u):\n    def step(z, x):\n{body}\n{wrap}{result}\n"


def _output(output: str) -> str:
    if output in ("one", "i"):
        return {"one": "1.0", "i": 'x["i"]'}[output]
    kind, _, name = output.rpartition(" ")
    return {"new": f'new["{name}"]', "old": f'z["{name}"]', "": name}[kind]


def _ours(program: Scan) -> str:
    inner = INNER if any("inner(" in node.does.text for node in program.used) else ""
    return "\noracle = lax.scan\n" + _deeppcr(program) + inner


def _deeppcr(program: Scan) -> str:
    options = f"method={program.method}, adjoint={program.adjoint}" + (
        f", batch_ndim={1}" if program.batch else ""
    )
    if program.through == "scan":
        return f"ours = partial(deeppcr.scan, {options})\n\n"
    return f"""
def ours(step, init, xs, length):
    found = deeppcr.solve(deeppcr.Chain(lambda z, x: step(z, x)[0], xs, length), init, {options})
    return found.value, found.trajectory

"""


def _helpers(program: Scan) -> str:
    """What the check needs."""
    names, check = ["w", "init", "u"], program.check
    indices = tuple(names.index(name) for name in program.wrt)
    parts = []
    if check in REVERSE or check == "gradient":
        scales = {leaf.name: leaf.scale for leaf in program.leaves}
        terms = []
        for term in program.loss:
            kind, _, name = term.partition(" ")
            output = name if kind == "last" else program.outputs[int(name)]
            size = scales.get(output.removeprefix("new ").removeprefix("old "), 1.0)
            term = f"{kind}[{name if kind == 'ys' else repr(name)}]"
            terms.append(f"pair({term})" if size == 1 else f"pair({term}, {size})")
        parts.append("""
def pair(y, size=1.0):
    y = jnp.asarray(y).astype(F) / size
    return jnp.vdot(jnp.cos(jnp.arange(y.size)).reshape(y.shape).astype(F) + 0.5 * y, y)
""")
        parts.append(f"""
def loss(scan, w, init, u):
    last, ys = run(scan, w, init, u)
    return {" + ".join(terms)}
""")
        keys = ", ".join(f'"by_{name}": by[{i}]' for i, name in enumerate(program.wrt))
        parts.append(f"\ndef named(by):\n    return {{{keys}}}\n")
    if check in ("jvp", "jvp of gradient", "gradient of gradient", "pullback"):
        parts.append("""
def along(tree):
    def one(a):
        wave = jnp.cos(jnp.arange(1, a.size + 1)).reshape(a.shape).astype(F)
        return (wave * (1 + jnp.abs(a))).astype(a.dtype)

    return jax.tree.map(one, tree)
""")
    if check in ("jvp", "jvp of gradient", "pullback"):
        taken = ", ".join(program.wrt)
        order = ", ".join(
            f"moved[{program.wrt.index(name)}]" if name in program.wrt else name for name in names
        )
        parts.append(f"\ndef taken(w, init, u):\n    return ({taken},)\n")
        parts.append(f"\ndef put(moved, w, init, u):\n    return {order}\n")
    lines = "\n".join(parts)
    if check in ("jvp", "pullback"):
        lines += f"\n\nFLOATING = {program.floating}\n"
    if check in REVERSE or check == "gradient":
        lines += f"\n\nWRT = {indices}\n"
    if check in NAMED:
        mapped = tuple(-1 if name in program.wrt else None for name in names)
        several = ", ".join(
            f"jax.tree.map(lambda a: jnp.stack([a, 0.9 * a], -1).astype(F), {name})"
            if name in program.wrt
            else name
            for name in names
        )
        lines += f"\n\ndef many(w, init, u):\n    return {several}\n\n\nMAPPED = {mapped}\n"
        lines += MESH if check.endswith("on a mesh") else ""
    return lines + "\n"
