"""The colours of what GPUs do and of the categories of memory, the same in every picture and page.

They are of Paul Tol's "bright" and "muted" schemes, and a brown, which people who are colour-blind can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping

#: What GPUs and their hosts do, and the parts of a step.
ACTIVITY_COLOURS: Mapping[str, str] = {
    "forward": "#4477AA",
    "backward": "#66CCEE",
    "optimizer": "#228833",
    "compute": "#4477AA",
    "host computation": "#AA3377",
    "communication": "#EE6677",
    "exposed communication": "#EE6677",
    "waiting for a partner": "#F7C3CA",
    "idle": "#DDDDDD",
}

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
