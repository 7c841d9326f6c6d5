"""The lifetimes of a step's memory, and the bytes that are alive at each moment."""
