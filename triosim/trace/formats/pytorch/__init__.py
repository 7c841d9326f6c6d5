"""Traces that PyTorch's profiler and execution-trace observer write."""
