"""What programs know of arrays: their types, the layout of a state, what moves and what stays."""
