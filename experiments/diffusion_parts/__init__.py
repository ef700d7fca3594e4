"""Training, sampling, quality and figure of the experiment `diffusion`."""
