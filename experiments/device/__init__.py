"""The first thing to run on a device: what is right, how fast, and what follows for the rule."""
