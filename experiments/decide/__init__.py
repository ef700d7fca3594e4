"""The choices of "auto"."""
