"""Fits compute models to measured operators, and finds their errors."""
