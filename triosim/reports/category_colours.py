"""The colours of the categories of memory, the same in every picture and page.

They are of Paul Tol's "bright" and "muted" schemes, and a brown, which people who are colour-blind can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping

CATEGORY_COLOURS: Mapping[str, str] = {
    "parameter": "#4477AA",
    "buffer": "#332288",
    "optimizer_state": "#228833",
    "gradient": "#CCBB44",
    "input": "#AA3377",
    "activation": "#66CCEE",
    "output": "#44AA99",
    "temporary": "#EE6677",
    "communication": "#994F00",
    "workspace": "#BBBBBB",
}
