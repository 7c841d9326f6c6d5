"""Micro-benchmarks of operators on the device at hand, whose times the compute models are fitted to."""
