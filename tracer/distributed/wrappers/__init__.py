"""Lets PyTorch's own parallel wrappers run as on a GPU: DDP, FSDP, DTensor, pipelines, context parallelism."""
