"""The bench: variants in, rows out."""
