"""Measured training steps: a file for each format of table, which is read and predicted behind one interface.

``validation/end_to_end.py`` is the command. A module here that has ``FORMATS`` is found by it (``validation.steps.formats``).
"""
