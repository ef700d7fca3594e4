"""A chain, from what a user wrote to a traced step, its carry, and its examples."""
