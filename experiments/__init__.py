"""Experiments with deeppcr: `python -m experiments` lists them."""
