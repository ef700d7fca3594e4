"""Gradients of recurrent programs of the sizes that people train."""
