"""Sharding rules, as in DTensor: what each kind of operator does to the dimensions, and so to the placements, of its tensors.

A rule takes an operator and the dimensions of its inputs, and returns those of its first outputs; what it leaves out, or all
where it returns None, is found by shape. Where a trace holds no attributes (``dim``, ``groups``), they are read off the
shapes, and of several possibilities the usual one is taken.
"""
