"""Parallelisms of embedding tables that are too large for one GPU, as recommendation models have them."""
