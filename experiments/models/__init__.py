"""Models and data that several experiments share."""
