"""The parts of `python -m experiments iterations`."""
