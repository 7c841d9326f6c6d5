"""Searches a space of configurations for the best by an objective, with a certificate that none of the others is better."""
