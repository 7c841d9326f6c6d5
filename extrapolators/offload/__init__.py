"""Optimizer states, parameters and activations that are kept outside of GPUs, and the copies that this takes."""
