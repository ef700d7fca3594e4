"""The published results of the field, beside ours."""
