"""Predicted times beside measured ones, for programs that no constant was fitted to."""
