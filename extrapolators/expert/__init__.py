"""Expert parallelism: the placement of experts, the tokens that each receives, and the all-to-alls that exchange them."""
