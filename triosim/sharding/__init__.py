"""What each dimension of an operator's tensors means, and how a shard passes through the operator."""
