"""What multistep methods have in common: their orders, their weights, and what they remember."""

import operator

import numpy as np
from numpy.polynomial.polynomial import polyfromroots

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.table import Terms, term


def find_orders(config: Config, steps: int, few: float = np.inf) -> np.ndarray:
    """``[L]``: of the steps, which know those from ``start`` on.

    Below ``few`` steps, ``lower_order_final`` counts: orders fall to 1 at the end.
    """
    orders = np.clip(np.arange(steps) + 1 - config["start"], 1, config["solver_order"])
    if config["lower_order_final"] and steps < few:
        orders = np.minimum(orders, np.arange(steps, 0, -1))
    return orders


def exact_weights(nodes: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """``[n]``: the weights ``w`` for which ``sum_j w_j p(u_j)`` is exact for polynomials.

    It is that of ``p`` by the Lagrange polynomials of the nodes.

    Args:
        nodes: ``[n]``, the ``u_j``.
        moments: ``[n]``: the sum for ``p = 1, u, u², ..``.
    """
    weights = np.zeros(len(nodes))
    for j, node in enumerate(nodes):
        rest = np.delete(nodes, j)
        weights[j] = polyfromroots(rest) @ moments / np.prod(node - rest)
    return weights


def multistep(start: Terms, weights: np.ndarray, y: Terms) -> dict[str, Terms]:
    """The update of a linear multistep method: ``x' = start + w_0 y + w_1 y_1 + ..``.

    Args:
        start: the other terms.
        weights: ``[L, n]``, those of ``y`` at this step and at the ``n - 1`` before it.
        y: a combination of this step's terms, which is remembered.
    """
    ys = [y, *(term(f"y{i}") for i in range(1, weights.shape[1]))]
    memory = {f"y{i}": before for i, before in enumerate(ys[:-1], 1)}
    return {"x": sum(map(operator.mul, weights.T, ys), start), **memory}
