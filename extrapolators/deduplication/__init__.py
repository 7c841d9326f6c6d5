"""Layer deduplication: repeated layers are transformed once."""
