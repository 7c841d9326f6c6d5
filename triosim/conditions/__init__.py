"""Heterogeneous GPUs and links, stragglers, faults, and interference of computation and communication."""

from triosim.conditions.conditions import Conditions, GpuEvent, Interference, LinkEvent, SlowdownFactors, Stragglers
from triosim.conditions.parsing import KEYS, conditions_of, parse_conditions, parse_factors, parse_ranks

__all__ = [
    "KEYS",
    "Conditions",
    "GpuEvent",
    "Interference",
    "LinkEvent",
    "SlowdownFactors",
    "Stragglers",
    "conditions_of",
    "parse_conditions",
    "parse_factors",
    "parse_ranks",
]
