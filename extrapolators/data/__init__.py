"""Data parallelism and its sharded and asynchronous relatives."""
