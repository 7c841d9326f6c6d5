"""Collective algorithms: how an all-reduce and its kin become transfers between two ranks each."""

from triosim.networks.collectives.algorithm import CollectiveAlgorithm, Edge, SteadyState, Transfer

__all__ = ["CollectiveAlgorithm", "Edge", "SteadyState", "Transfer"]
