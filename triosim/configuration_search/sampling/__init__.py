"""Searches spaces that are too large to weigh, or have intervals: a sampler draws points, and is told how good they are."""
