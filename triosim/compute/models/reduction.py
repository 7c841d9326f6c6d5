"""Operator times of softmax and layer normalisation, which are bound by memory with a rate that depends on the row's length.

Category two of TorchSim (appendix E): a decision tree over the number and the length of the rows, as kernels are chosen by
length (one warp, one block, or several passes a row). Here it is a few small trees over the memory's roofline.
"""

from __future__ import annotations

from triosim.compute.models.forest import Forest


class Reduction(Forest):
    """``softmax``, ``log_softmax``, ``layer_norm``. Half precision is taken as float32 rows of as many bytes."""

    families = ("softmax", "layer_norm")
    label = "reduction"
    same_units = False
