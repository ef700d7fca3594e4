"""Whether results are of the programs that run today.

An experiment names small cases, ``samples()``. The digests of their programs, as jax lowers them,
stand in the head of its results: where they differ from those of today, what was measured is no
longer what runs. A change that leaves all programs as they are leaves results as new as they were.
"""

import hashlib
import re
from typing import Any

import jax

from experiments.bench import results
from experiments.bench.engine import Case, Variant

PROGRAMS = "programs"  # in the head of a result file
SYMBOL = r'@([\w.$]+|"[^"]*")'
NAMED = re.compile(r"func\.func (?:public |private )?" + SYMBOL)


def digests(name: str) -> dict[str, str]:
    """Of each program of an experiment's samples, baselines aside, by its case and its name."""
    found: dict[str, str] = {}
    with jax.enable_x64(False):  # some experiments run in float64, others do not
        for case in results.experiment(name).samples():
            of = " ".join(map(str, case.labels.values()))
            for program, given in case.variants.items():
                variant = given if isinstance(given, Variant) else Variant(given)
                if variant.is_jax:
                    found[f"{of}: {program}"] = digest(variant, case)
    return found


def digest(variant: Variant, case: Case) -> str:
    """Of a program for a case's arguments as jax lowers it, but for the names of functions."""
    arguments = (case.arguments if variant.arguments is None else variant.arguments)[0]
    if variant.prepare:
        arguments = jax.eval_shape(variant.prepare, *arguments)
    text = jax.jit(lambda *arguments: variant.run(*arguments)).lower(*arguments).as_text()
    number = {name: str(number) for number, name in enumerate(NAMED.findall(text))}
    text = re.sub(SYMBOL, lambda found: f"@{number.get(found[1], found[1])}", text)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def old(name: str) -> str:
    """Why results of this device and jax are old; empty if they are not.

    Other releases of a version of jax may lower the same program differently: results of one are
    not compared with programs of another.
    """
    path = results.path_of(name)
    if not path.exists():
        return "not measured"
    now: dict[str, Any] = {}
    for head, _ in results.groups(path):
        since = f"since {str(head.get('commit'))[:7]}"
        if not head.get(PROGRAMS):
            return f"{since} nobody knows which programs were measured"
        if head["jax"] == jax.__version__:
            now = now or digests(name)
            if changed := [each for each in now if head[PROGRAMS].get(each) != now[each]]:
                return f"{since} other programs run: {'; '.join(changed)}"
    return ""
