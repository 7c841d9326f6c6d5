"""Micro-benchmarks of operators on a real device, whose times the compute models are fitted to."""
