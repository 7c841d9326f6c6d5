"""Heterogeneous GPUs and links, stragglers, faults, and interference of computation and communication."""

from triosim.conditions.conditions import Conditions, Interference, Stragglers
from triosim.conditions.parsing import conditions_of, parse_conditions

__all__ = ["Conditions", "Interference", "Stragglers", "conditions_of", "parse_conditions"]
