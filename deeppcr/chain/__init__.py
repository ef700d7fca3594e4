"""A chain, from what a user wrote to a traced step, its carry, and its examples.

chain.py      `Chain`, `TracedChain`, and why one cannot be solved in parallel
trace.py      a user's function, traced to a step; random numbers of all steps, drawn at once
step.py       `Step`: a pure function of arrays
carry.py      a carry, split into what is solved for and what runs ahead
part.py       a chain of some leaves of the state
examples.py   a chain under `jax.vmap`
kept.py       what a loop keeps for its derivative
eager.py      eager calls compile once
"""
