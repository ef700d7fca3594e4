"""Diffusion sampling."""
