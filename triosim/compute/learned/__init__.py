"""Learned operator time models: their forms, the features that they read, and the files that hold them."""
