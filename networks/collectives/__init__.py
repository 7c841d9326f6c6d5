"""Collective algorithms, which lower collectives to transfers between two ranks."""

from triosim.networks.collectives.algorithm import CollectiveAlgorithm, Edge, SteadyState, Transfer

__all__ = ["CollectiveAlgorithm", "Edge", "SteadyState", "Transfer"]
