"""A Gaussian process over calls on several GPUs: it interpolates between calls that were measured, with numpy alone.

The covariance of two calls is a sum of terms (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006). A term
holds between calls that have some labels in common: the same GPU, the same units and direction, the same call on GPUs with the
same units, and so on. It is constant, or falls with the distance of the calls' features as Matern's covariance with 3/2 does
(section 4.2.1 there). What all GPUs with the same units have in common thus carries over to one that was not measured, and what
its own calls show counts more where there are some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from triosim.compute.compute_model import Array, Mask, Rows

LABELS: Final = ("gpu", "architecture", "units", "direction", "call", "alignment")
#: A file stores features in these parts of one; ``rounded`` is what a fit sees.
_PARTS_OF_ONE: Final = 128.0


class Term(NamedTuple):
    """A part of the covariance between calls with some labels in common: ``local``, if it falls with their distance."""

    labels: tuple[str, ...]
    local: bool


TERMS: Final = (
    *(Term(("gpu",), False), Term(("direction",), False), Term(("units", "call"), False)),
    *(Term(("units",), True), Term(("units", "alignment"), True), Term(("units", "direction"), True)),
    *(Term(("architecture", "direction", "alignment"), True), Term(("gpu", "direction"), True)),
)


@dataclass(frozen=True)
class Points:
    """Calls: a row of features each, and a row of labels (``LABELS``)."""

    features: Array
    labels: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def coded(self) -> tuple[npt.NDArray[np.str_], Rows]:
        """The distinct labels in order, and the place of each label among them."""
        names, codes = np.unique(self.labels, return_inverse=True)
        return names, codes.reshape(self.labels.shape)

    def select(self, rows: Rows) -> Points:
        """Return some of the calls."""
        return Points(self.features[rows], self.labels[rows])

    def rounded(self) -> Points:
        """Return the calls with their features as a file stores them."""
        return Points(np.round(self.features * _PARTS_OF_ONE) / _PARTS_OF_ONE, self.labels)


@dataclass(frozen=True)
class Covariance:
    """The length scale of each feature, the variance of each of ``TERMS``, and that of the noise of a measurement."""

    scales: Array
    variances: Array
    noise: float

    def between(self, some: Points, others: Points) -> Array:
        """Return the covariance of each of some calls with each of others."""
        local, _ = self.matern(some, others)
        found = np.zeros_like(local)
        for variance, term, shared in zip(self.variances, TERMS, in_common(some, others), strict=True):
            found += variance * shared * (local if term.local else 1.0)
        return found

    def matern(self, some: Points, others: Points) -> tuple[Array, Array]:
        """Return Matern's covariance of features, and its exponential part."""
        one, other = some.features / self.scales, others.features / self.scales
        squares = (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1) - 2.0 * one @ other.T
        away = np.sqrt(3.0 * np.maximum(squares, 0.0))
        falling = np.exp(-away)
        return (1.0 + away) * falling, falling


def in_common(some: Points, others: Points) -> list[Mask]:
    """Return, for each of ``TERMS``, which calls have its labels in common."""
    names, codes = others.coded
    own, own_codes = some.coded
    known = np.isin(own, names)
    place = np.where(known, np.searchsorted(names, own), len(names))[own_codes]
    found = []
    for term in TERMS:
        columns = [LABELS.index(label) for label in term.labels]
        base = (len(names) + 1) ** np.arange(len(columns))
        found.append((place[:, columns] @ base)[:, None] == codes[:, columns] @ base)
    return found


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process: the measured calls, the weight of each, and the mean of all calls."""

    covariance: Covariance
    points: Points
    weights: Array
    mean: float

    def predict(self, points: Points) -> Array:
        """Return the expected value at each call."""
        found: Array = self.mean + self.covariance.between(points, self.points) @ self.weights
        return found

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that a file stores, by name behind a prefix."""
        names, codes = self.points.coded
        return {
            f"{prefix}.scales": self.covariance.scales,
            f"{prefix}.variances": np.append(self.covariance.variances, self.covariance.noise),
            f"{prefix}.features": np.round(self.points.features.T * _PARTS_OF_ONE).astype(np.int16),
            f"{prefix}.names": names,
            f"{prefix}.labels": codes.T.astype(np.uint16),
            f"{prefix}.weights": self.weights.astype(np.float32),
            f"{prefix}.mean": np.array(self.mean),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> GaussianProcess:
        """Return the process of such arrays."""
        *variances, noise = arrays[f"{prefix}.variances"].tolist()
        covariance = Covariance(arrays[f"{prefix}.scales"], np.array(variances), noise)
        features = arrays[f"{prefix}.features"].T / _PARTS_OF_ONE
        labels = arrays[f"{prefix}.names"][arrays[f"{prefix}.labels"].T]
        weights = arrays[f"{prefix}.weights"].astype(np.float64)
        return cls(covariance, Points(features, labels), weights, float(arrays[f"{prefix}.mean"]))
