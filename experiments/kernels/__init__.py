"""What programs launch on a GPU."""
