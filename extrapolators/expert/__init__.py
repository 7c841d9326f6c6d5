"""Expert parallelism: where experts are, how many tokens each receives, and the all-to-alls that bring them there."""
