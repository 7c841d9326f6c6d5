"""What ends a run of ASTRA-sim, or a rank of it, before it has reported."""

from __future__ import annotations


class Stopped(Exception):
    """The process ends: no rank reports after this."""


class NeverEnds(Exception):
    """A node that is issued, and whose end never comes; its rank never reports, the others go on."""


class Thrown(Stopped):
    """An exception; those out of a rank's timers are swallowed, after which the rank never reports."""
