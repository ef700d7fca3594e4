"""Newton's iterations by every form of the method."""
