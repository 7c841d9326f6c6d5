"""A fake CUDA device: operators on PyTorch's fake tensors, which have shapes, streams and memory, and no data."""
