"""The memory of the fake device as PyTorch reports it: figures, out of memory, snapshots."""
