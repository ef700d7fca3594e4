"""The solution of a chain as one equation, and everything between a call and a method."""
