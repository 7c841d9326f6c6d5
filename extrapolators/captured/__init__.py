"""Task streams that were captured from a distributed script, run as they are."""
