"""Puts this folder on the import path, so that the tests of all rooms of the tracer share ``fake_models``."""
