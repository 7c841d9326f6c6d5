"""The compiled form of :func:`triosim.networks.flow.sharing.refill`, when numba is installed.

It is the same source, compiled without fast-math: the same operations in the same order, so the same results to the
last bit. Loading numba and the compiled code takes about a second (several when it is compiled for the first time; it
is cached beside the source), which a network repays only after much sharing: so it starts in plain Python and changes
over once it has worked about as long as the change costs, and is never much slower than the better of the two.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

from triosim.errors import OptionError
from triosim.networks.flow.sharing import Refill, refill

WORTH_IT = 4_000_000  # crossings looked at: about two seconds of plain Python


def available() -> bool:
    """Return whether numba is installed, without importing it."""
    return find_spec("numba") is not None


@lru_cache(maxsize=1)
def compiled_refill() -> Refill:
    """Return ``refill``, compiled."""
    if not available():
        raise OptionError(
            "numba is not installed", where="kernel", fix="pip install triosim[fast], or leave it to 'auto'"
        )
    import numba

    compiled: Refill
    try:
        compiled = numba.njit(cache=True)(refill)
    except RuntimeError:  # nowhere to write a cache
        compiled = numba.njit(refill)
    return compiled
