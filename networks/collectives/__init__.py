"""Collective algorithms: how an all-reduce and its kin become transfers between two ranks each."""

from triosim.networks.collectives.algorithm import CollectiveAlgorithm, Edge, Pipeline, Transfer

__all__ = ["CollectiveAlgorithm", "Edge", "Pipeline", "Transfer"]
