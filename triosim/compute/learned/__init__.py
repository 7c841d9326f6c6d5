"""Operator time models that were fitted to measurements: their form, their files, their features."""
