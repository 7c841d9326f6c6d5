"""The limits of what is read and built, so that a slip of the keyboard or a damaged file does not take all time and memory.

What is beyond a limit ends in one line before the work begins. ``TRIOSIM_LIMITS=10`` makes all limits ten times as large.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from triosim.errors import OptionError, TriosimError

VARIABLE = "TRIOSIM_LIMITS"


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that there may be of something, such as "links"."""

    most: int
    of: str

    @property
    def allowed(self) -> float:
        """The limit as the user has set it."""
        return self.most * _factor()

    def check(self, number: float, where: str, error: type[TriosimError] = OptionError) -> None:
        """Raise an error where a number is beyond the limit."""
        if number > self.most and number > self.allowed:
            number = min(number, 10**300)  # which a float can be
            raise error(
                f"{_shown(number)} {self.of} are more than the limit of {_shown(self.allowed)}",
                where=where,
                fix=self.fix(number),
            )

    def fix(self, number: float) -> str:
        """Return how the limit is raised to a number."""
        return f"set {VARIABLE}={_needed(min(number, 10**300) / self.most)} in the environment if you mean it"


#: Of a file, in memory: whole or decompressed.
FILE_BYTES = Limit(4_000_000_000, "bytes of a file")
#: Of what comes through a pipe and would be compressed by more than ``EXPANSION``.
REPEATED_BYTES = Limit(32_000_000, "bytes that repeat themselves")
#: Of what comes through a pipe and is neither JSON nor compressed: tables, YAML, or what has no end.
PIPED_BYTES = Limit(64_000_000, "bytes out of a pipe, neither JSON nor compressed,")
#: Of YAML, of which a second reads about a million.
YAML_BYTES = Limit(64_000_000, "bytes of YAML")
#: Of what a compressed file becomes: up to this it may expand by any factor, beyond it by ``EXPANSION``.
EXPANDED_BYTES = Limit(32_000_000, "bytes out of a file that small")
#: The most that text such as JSON or CSV expands by; 10 to 60 is usual.
EXPANSION = 150
#: Of a tensor: a petabyte or more.
ELEMENTS = Limit(2**50, "elements of a tensor")
#: Of a described model; what has more has more operators than the next limit, and is not described to count them.
LAYERS = Limit(5_000, "layers of a model")
#: Of the forward pass of a described model.
FORWARD_OPERATORS = Limit(50_000, "operators of a forward pass")
#: Forward and backward passes of micro-batches in the stages of a pipeline.
ACTIONS = Limit(200_000, "forward and backward passes")
#: Of a topology, and of a step that is simulated.
GPUS = Limit(200_000, "GPUs")
#: Of a topology, one for each direction. A million takes 400 MB where they are all looked at.
LINKS = Limit(2_000_000, "links")
#: Of GPUs that are all connected with each other, whose collectives use all links at once: 2.5 kB of memory for each.
DIRECT_LINKS = Limit(500_000, "links of GPUs that are all connected")


def _factor() -> float:
    text = os.environ.get(VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise OptionError(f"'{text}' is not a factor", where=VARIABLE, fix="give a number such as 10")
    return factor


def _needed(ratio: float) -> str:
    """Return the factor that is needed, rounded up to one digit."""
    if not ratio < 1e15:
        return "1e15"
    scale = 10 ** math.floor(math.log10(ratio))
    return f"{math.ceil(ratio / scale) * scale:,}".replace(",", "")


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number < 1e15 else f"{number:.1e}"
