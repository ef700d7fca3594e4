"""Training a residual network."""
