"""What is measured and shown with deeppcr: `python -m experiments` lists it."""
