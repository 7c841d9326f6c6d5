"""Comparison of triosim with measured figures, other simulators, closed forms, and calculations by hand.

``python -m validation`` runs every script here whose data are there and prints one table.
"""
