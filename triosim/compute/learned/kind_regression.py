"""The regression of one kind of operator on one GPU, fitted to a user's measured rows: predicts times and their errors.

It has one of four forms: a multiple of the estimate of a model that ships with triosim, a multiple of the roofline,

    time = c * (2 us + roofline at the GPU's peaks),

a line, time = a + b1 * FLOPs + b2 * bytes read + b3 * bytes written (``triosim.compute.models.linear``), or boosted trees
for the ratio to the roofline. ``triosim.compute.fit.kind_fitting`` chooses by cross-validation. Sizes beyond those that were
measured carry the error that the largest and the smallest sizes had when they were held out. A call that was measured has its
measured time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from triosim.compute.compute_model import Array, Rows
from triosim.compute.learned.boosted_trees import BoostedTrees
from triosim.trace import Operator

Form = Literal["shipped", "roofline", "line", "trees"]

#: Sizes that differ by less than this are the same.
_SAME = 0.01
#: The expected error of an operator in a step that was measured with these shapes, by itself or in another step. Assumed: the
#: noise of one row of a table is 1.5 to 4.3% (docs/calibration.md, *The noise floor*).
MEASURED_ERROR = 0.05
_FORM_NAMES = {"shipped": "the model that ships", "roofline": "the roofline", "line": "a line", "trees": "trees"}


class OperatorKind(NamedTuple):
    """The name, phase and dtype of the operators that a regression is fitted to.

    ``name`` is a bare operator name, or ``any CLASS`` for a class of operators (``any convolution``); ``dtype`` is empty for
    operators that only move bytes.
    """

    name: str
    phase: str
    dtype: str

    def __str__(self) -> str:
        return " ".join(part for part in (self.name, self.phase if self.phase != "forward" else "", self.dtype) if part)


def call_of(operator: Operator) -> str:
    """Return what an operator has in common with those that run the same kernels: a hash of its name, shapes and attributes."""
    tensors = [[(tensor.shape, tensor.dtype) for tensor in some] for some in (operator.inputs, operator.outputs)]
    attributes = json.dumps(dict(operator.attributes), sort_keys=True, default=str)
    text = f"{operator.name} {operator.phase} {tensors} {attributes}"
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:16]


@dataclass(frozen=True)
class KindFeatures:
    """The inputs of regressions, one entry for each operator.

    drivers: 1, FLOPs, bytes read and bytes written, by column.
    roofline: seconds at the GPU's peaks.
    shipped: seconds by the models that ship with triosim, NaN where none knows the operator.
    features: the columns for boosted trees.
    kinds: the operator's kind by name, and by class.
    calls: what tells operators apart that run the same kernels (``call_of``).
    """

    drivers: Array
    roofline: Array
    shipped: Array
    features: Array
    kinds: list[tuple[OperatorKind, OperatorKind]]
    calls: Sequence[str]

    def select(self, rows: Rows) -> KindFeatures:
        """Return the features of some of the operators."""
        parts = (self.drivers[rows], self.roofline[rows], self.shipped[rows], self.features[rows])
        return KindFeatures(*parts, [self.kinds[row] for row in rows], [self.calls[row] for row in rows])


@dataclass(frozen=True)
class KindRegression:
    """A fitted regression of one kind of operator on one GPU.

    level: the multiple of ``shipped`` or ``roofline``; coefficients: those of a ``line``; trees: those of ``trees``.
    least: the shortest time that it predicts.
    error: the mean relative error of operators between ``smallest`` and ``largest`` (roofline seconds); beyond: that of others.
        Both come from ``rows`` measured calls of ``sizes`` sizes.
    files, software: the names of their files, and the versions that they were measured with.
    measured: the times of the calls that were measured.
    """

    gpu: str
    key: OperatorKind
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
    software: str = ""
    trees: BoostedTrees | None = None
    measured: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, known: KindFeatures, rows: Rows) -> Array:
        """Return the predicted times of the operators in some rows; NaN where a shipped model's is needed and missing."""
        if self.trees is not None:
            found: Array = known.roofline[rows] * np.exp(self.trees.predict(known.features[rows]))
        elif self.form == "line":
            found = known.drivers[rows] @ np.array(self.coefficients)
        else:
            found = (known.shipped if self.form == "shipped" else known.roofline)[rows] * self.level
        bounded: Array = np.maximum(found, self.least)
        return bounded

    def relative_error(self, known: KindFeatures, rows: Rows) -> Array:
        """Return the expected relative errors of the operators in some rows."""
        size = known.roofline[rows]
        inside = (size >= self.smallest / (1.0 + _SAME)) & (size <= self.largest * (1.0 + _SAME))
        return np.where(inside, self.error, self.beyond)

    def __str__(self) -> str:
        several = (f"{self.rows} row{'s' * (self.rows > 1)}", f"{self.sizes} size{'s' * (self.sizes > 1)}")
        return f"{self.key} by {_FORM_NAMES[self.form]} from {' of '.join(several)}"

    def about(self) -> dict[str, Any]:
        """Return everything but the trees, as a file of models keeps it in JSON."""
        about = asdict(replace(self, trees=None, measured={}))
        del about["measured"]
        return {**about, "key": list(self.key), "trees": self.trees is not None}

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Return the trees and the measured calls as arrays."""
        found = {} if self.trees is None else dict(self.trees.arrays(prefix))
        if self.measured:
            found[f"{prefix} calls"] = np.array(list(self.measured))
            found[f"{prefix} seconds"] = np.array(list(self.measured.values()))
        return found

    @classmethod
    def from_stored(
        cls, about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], prefix: str
    ) -> KindRegression:
        """Return the regression of a file."""
        trees = BoostedTrees.from_arrays(arrays, prefix) if about["trees"] else None
        calls = arrays[f"{prefix} calls"].tolist() if f"{prefix} calls" in arrays else []
        measured = dict(zip(calls, arrays[f"{prefix} seconds"].tolist(), strict=True)) if calls else {}
        kind, coefficients = OperatorKind(*about["key"]), tuple(about["coefficients"])
        return cls(**{**about, "key": kind, "coefficients": coefficients, "trees": trees, "measured": measured})
