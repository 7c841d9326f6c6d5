"""The operators that described models are written with, and their gradients."""
