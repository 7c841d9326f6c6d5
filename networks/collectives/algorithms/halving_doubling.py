"""Recursive halving and doubling: log2 N rounds, each with another partner and half, or twice, the data of the round before.

A reduce-scatter halves what is left in each round, an all-gather doubles it; an all-reduce is the one after the other
(Thakur, Rabenseifner and Gropp 2005). For a group that is no power of two the rounds are those of Bruck et al. (1997),
ceil(log2 N) of them, with as few bytes; backwards they reduce (Träff 2024). Broadcast, reduce, gather and scatter go
along binomial trees, all-to-all in the log2 N rounds of Bruck.
"""

from __future__ import annotations

from triosim.networks.collectives.phased.exchanges import DoublingExchange
from triosim.networks.collectives.phased.phases import SingleBlock


class HalvingDoubling(SingleBlock):
    """Few rounds and the least bytes for all-reduce, all-gather and reduce-scatter: for switches and small messages."""

    exchange = DoublingExchange()
