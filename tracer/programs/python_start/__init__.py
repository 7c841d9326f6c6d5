"""The folder that a script's environment names in ``PYTHONPATH``: what lies in it runs when Python starts."""
