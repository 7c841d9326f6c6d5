"""The answer of a search: its JSON, its tables, its picture, and how likely the first point is faster than the second."""
