"""triosim compared with what is known: measured figures, other simulators, closed forms, and working by hand.

``python -m validation`` runs every script here whose data are there and prints one table.
"""
