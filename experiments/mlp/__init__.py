"""Multilayer perceptrons over depth and width."""
