"""Expert parallelism and mixtures of experts."""
