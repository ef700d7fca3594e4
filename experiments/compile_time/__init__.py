"""Time to trace and compile."""
