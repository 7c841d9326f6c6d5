"""Collective algorithms, which lower collectives to transfers between two ranks."""
