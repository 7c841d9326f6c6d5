"""Fits collective times to measurements, and judges the fits."""
