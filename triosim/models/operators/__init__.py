"""The operators that described models are made of, each with its gradient."""
