"""Tensor, sequence and context parallelism."""
