"""What operators do to the dimensions of their tensors, and so to placements: rules by kind of operator, as in DTensor.

A rule takes an operator and the dimensions of its inputs, and returns those of its first outputs; what it leaves out, or all
where it returns None, is found by shape. Where a trace holds no attributes (``dim``, ``groups``), they are read off the
shapes, and of several possibilities the usual one is taken.
"""
