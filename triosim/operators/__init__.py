"""What an ATen operator computes: its kind, its products, its FLOPs and its bytes."""
