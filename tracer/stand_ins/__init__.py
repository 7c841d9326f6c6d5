"""Stand-ins of packages of CUDA kernels that are not installed: PyTorch's operators, with their shapes and memory."""
