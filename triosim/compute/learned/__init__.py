"""Learned operator time models, the features that they read, and their files."""
