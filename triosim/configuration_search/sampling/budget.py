"""How long a sampler may go on: for a number of points, or for a time."""

from __future__ import annotations

from dataclasses import dataclass

from triosim.errors import OptionError, TriosimError
from triosim.units import parse_time

_WHERE = "--budget"
#: Points, where nothing else is said.
DEFAULT_BUDGET = "200"


@dataclass(frozen=True, slots=True)
class Budget:
    """A number of ``points`` to try, or ``seconds``; the other is None."""

    points: int | None
    seconds: float | None

    @classmethod
    def read(cls, text: str) -> Budget:
        """Return the budget of ``200`` or ``60s``. Raises ``OptionError`` for anything else."""
        fix = "give a number of points such as 200, or a time such as 60s"
        if text.strip().isdecimal():
            if not 0 < int(text) <= 10**9:
                raise OptionError(f"'{text}' is not from 1 to 1e9 points", where=_WHERE, fix=fix)
            return cls(int(text), None)
        try:
            seconds = parse_time(text)
        except TriosimError:
            seconds = 0.0
        if not 0 < seconds < 1e9:
            raise OptionError(f"'{text}' is neither a number of points nor a time", where=_WHERE, fix=fix)
        return cls(None, seconds)

    def is_spent(self, points: int, seconds: float) -> bool:
        """Whether so many points and seconds are all that it has."""
        return (self.points is not None and points >= self.points) or (
            self.seconds is not None and seconds >= self.seconds
        )
