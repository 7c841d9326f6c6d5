"""Captures of training scripts, rank by rank, with predicted operator times."""
