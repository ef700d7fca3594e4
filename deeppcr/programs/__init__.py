"""Programs as data: what they contain, and equal programs with another form."""
