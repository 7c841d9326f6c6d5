"""Operator times: compute models, their fits, and the times of operators in other shapes or on other GPUs."""

from triosim.compute.compute_model import ComputeModel as ComputeModel
from triosim.compute.compute_model import Estimates as Estimates

__all__ = ["ComputeModel", "Estimates"]
