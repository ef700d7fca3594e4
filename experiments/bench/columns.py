"""The columns of printed tables: their order, the most important first, and what each one holds."""

LABELS = {
    "kind": "kind of chain",
    "L": "length of the chain, in steps",
    "w": "width: numbers in a state",
    "batch": "number of chains computed at once",
    "direction": "what is computed: forward pass, gradient, backward pass alone, ...",
}
BENCH = {  # of the rows of `experiments.bench.engine.bench`
    **LABELS,
    "program": "what runs; sequential programs first",
    "ms": "time of a call, in milliseconds (median)",
    "speedup": "fastest sequential program / this one, measured; above 1 is faster",
    "over lax.scan": "plain jax.lax.scan / this program, measured",
    "predicted speedup": "as speedup, from predicted times",
    "depth speedup": "depth of lax.scan / depth of this program: the limit on unlimited processors",
    "iterations": "Newton iterations",
    "ended": "how they ended",
    "error": "largest difference from lax.scan, relative to the largest entry",
    "predicted ms": "predicted time of a call, in milliseconds",
    "compile s": "seconds to compile",
    "temp MB": "memory for temporaries, in MB",
    "residual": "residual of the chain's equations at the end",
    "note": "why a program was not run, or what is wrong with it",
}
BEST = {  # of the rows of `experiments.bench.summary.best`
    **LABELS,
    "sequential": "fastest sequential program",
    "sequential ms": "its time, in milliseconds",
    "parallel": "fastest parallel program with the same result",
    "parallel ms": "its time, in milliseconds",
    **{key: BENCH[key] for key in ("speedup", "over lax.scan", "predicted speedup")},
    "auto, speedup": 'speedup of method="auto"',
}
