"""Captures on a real device, with PyTorch's profiler."""
