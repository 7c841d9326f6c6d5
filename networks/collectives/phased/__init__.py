"""What algorithms share that run in phases along the dimensions of a grid of ranks."""
