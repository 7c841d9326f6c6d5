"""What a benchmark's loop adds to the times of its rows, where it grows from row to row.

NeuSight's loop of convolutions took longer the more shapes it had seen: of 300 rows in a row, the quickest takes 60 us where
the table begins and 310 us where it ends (A100; 75 and 720 us on a P4), whatever it computes, and large convolutions take as
much more. What is left is the GPU's time. Where a row stands says nothing of a convolution, so rows are predicted with one
cost for all rows of a GPU.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from triosim.compute.compute_model import Array

#: The parts that a table's rows are cut into, and the rows of each that show what the loop adds: the smallest.
_PARTS, _FEWEST, _SMALLEST = 12, 50, 0.2


def added_by_loop(seconds: Array, least: Array) -> Array:
    """Return the seconds that a loop added to rows in the order in which they were measured; zeros for a table of few rows.

    ``least`` is the shortest time that the GPU can take. The smallest rows of each part of the table, which take next to
    nothing, show the cost there; it does not fall.
    """
    rows = len(seconds)
    if rows < _PARTS * _FEWEST:
        return np.zeros(rows)
    small = least <= np.quantile(least, _SMALLEST)
    edges = np.linspace(0, rows, _PARTS + 1).astype(int)
    parts = [slice(*ends) for ends in pairwise(edges)]
    costs = np.array([(seconds - least)[part][small[part]].min(initial=np.inf) for part in parts])
    costs = np.minimum.accumulate(np.maximum(costs, 0.0)[::-1])[::-1]
    found: Array = np.interp(np.arange(rows), (edges[:-1] + edges[1:]) / 2.0, costs)
    return found


def usual(added: Array, seconds: Array) -> float:
    """Return the cost for all rows with the smallest mean relative error: the median, by the reciprocals of their times."""
    order = np.argsort(added)
    share = np.cumsum(1.0 / seconds[order])
    return float(added[order][np.searchsorted(share, 0.5 * share[-1])])
