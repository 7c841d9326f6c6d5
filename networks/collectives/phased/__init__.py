"""Algorithms that run in phases along the dimensions of a grid of ranks: their grids, exchanges and steady states."""
