"""Compile times, of programs and of stacks of layers."""
