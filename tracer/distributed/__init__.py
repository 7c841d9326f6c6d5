"""One rank of a distributed script, captured alone."""
