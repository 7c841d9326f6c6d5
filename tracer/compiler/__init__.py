"""``torch.compile`` and CUDA graphs on the fake device: graphs run as kernels of a compiler, or with one launch."""
