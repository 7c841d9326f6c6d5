"""The law of one kind of operator on one GPU: what time it takes, and how sure that is.

A law has one of four forms: a model that ships with triosim at a level, or the roofline at a level,

    time = c * (2 us + roofline at the GPU's peaks),

or a line, time = a + b1 * FLOPs + b2 * bytes read + b3 * bytes written (``triosim.compute.models.linear``), or boosted trees
over the
roofline. ``triosim.compute.fit.kind_fitting`` finds which holds best. Sizes beyond those that were measured carry the error
that the largest and the smallest sizes had when they were held out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from triosim.compute.fit.operator_rows import Described, Key
from triosim.compute.learned.ensemble import Ensemble

Array = npt.NDArray[np.float64]
Form = Literal["shipped", "roofline", "line", "trees"]

#: Sizes that differ by less than this are the same.
_SAME = 0.01


@dataclass(frozen=True)
class KindLaw:
    """A ``level`` over what is ``shipped`` or the ``roofline``, the ``coefficients`` of a ``line``, or ``trees``.

    ``least`` is the shortest time that it says. ``error`` is the mean relative error between ``smallest`` and ``largest``
    (seconds on the roofline), ``beyond`` outside; both are of ``rows`` measured calls of so many ``sizes``.
    """

    gpu: str
    key: Key
    form: Form
    level: float
    coefficients: tuple[float, ...]
    least: float
    smallest: float
    largest: float
    rows: int
    sizes: int
    error: float = np.nan
    beyond: float = np.nan
    files: str = ""
    trees: Ensemble | None = None

    def seconds(self, described: Described, places: npt.NDArray[Any]) -> Array:
        """Return the time of the operators at some places; NaN where what is shipped does not know."""
        if self.trees is not None:
            found: Array = described.roofline[places] * np.exp(self.trees.predict(described.features[places]))
        elif self.form == "line":
            found = described.drivers[places] @ np.array(self.coefficients)
        else:
            found = (described.shipped if self.form == "shipped" else described.roofline)[places] * self.level
        bounded: Array = np.maximum(found, self.least)
        return bounded

    def relative_error(self, described: Described, places: npt.NDArray[Any]) -> Array:
        """Return the expected errors of the operators at some places."""
        size = described.roofline[places]
        inside = (size >= self.smallest / (1.0 + _SAME)) & (size <= self.largest * (1.0 + _SAME))
        return np.where(inside, self.error, self.beyond)

    def __str__(self) -> str:
        by = {"shipped": "the model that ships", "roofline": "the roofline", "line": "a line", "trees": "trees"}[
            self.form
        ]
        several = (f"{self.rows} row{'s' * (self.rows > 1)}", f"{self.sizes} size{'s' * (self.sizes > 1)}")
        return f"{self.key} by {by} from {' of '.join(several)}"

    def about(self) -> dict[str, Any]:
        """Return what a file says of it, without the trees."""
        return {**asdict(replace(self, trees=None)), "key": list(self.key), "trees": self.trees is not None}

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Return the trees as arrays."""
        return {} if self.trees is None else dict(self.trees.arrays(prefix))

    @classmethod
    def from_stored(cls, about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> KindLaw:
        """Return what ``about`` and ``arrays`` were made from."""
        trees = Ensemble.from_arrays(arrays, prefix) if about["trees"] else None
        known = {**about, "key": Key(*about["key"]), "coefficients": tuple(about["coefficients"]), "trees": trees}
        return cls(**known)
