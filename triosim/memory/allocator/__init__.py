"""PyTorch's caching allocator for CUDA memory."""
