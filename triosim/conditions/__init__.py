"""Heterogeneous GPUs and links, stragglers, faults, and interference of computation and communication."""

from triosim.conditions.conditions import (
    COLLECTIVES,
    KEYS,
    KINDS,
    LARGEST_FACTOR,
    MOST_GPUS,
    Conditions,
    Distribution,
    Factors,
    GpuEvent,
    Interference,
    LinkEvent,
    Often,
    Stragglers,
    factors,
    ranks_of,
    read,
)

__all__ = [
    "COLLECTIVES",
    "KEYS",
    "KINDS",
    "LARGEST_FACTOR",
    "MOST_GPUS",
    "Conditions",
    "Distribution",
    "Factors",
    "GpuEvent",
    "Interference",
    "LinkEvent",
    "Often",
    "Stragglers",
    "factors",
    "ranks_of",
    "read",
]
