"""The engine of all experiments: programs in, rows, tables and files out."""
