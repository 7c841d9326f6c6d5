"""Operator times for another shape, another GPU, or from a file."""
