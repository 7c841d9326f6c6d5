"""The profiles of the ranks of a distributed step."""
