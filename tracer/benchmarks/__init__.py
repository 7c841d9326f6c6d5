"""Micro-benchmarks of operators on the device at hand."""
