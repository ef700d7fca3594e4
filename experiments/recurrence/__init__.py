"""The linear recurrence by every solver."""
