"""The rows of `python -m experiments sharding`."""
