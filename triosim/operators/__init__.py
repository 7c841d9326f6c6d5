"""Properties of ATen operators: kind, matrix products, FLOPs and bytes."""
