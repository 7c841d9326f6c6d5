"""A run as PyTorch's profiler would have recorded it: a file for each rank."""
