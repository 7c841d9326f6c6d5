"""Rank folding: identical ranks are simulated once, with exactly the same results."""
