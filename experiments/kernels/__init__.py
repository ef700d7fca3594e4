"""Launches of programs on a GPU."""
