"""Seconds to trace and compile."""
