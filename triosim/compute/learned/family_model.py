"""A fitted model of one family of operators in one dtype: trees on top of the roofline, and how far it was off.

A GPU with many measurements has trees of its own; GPUs with some share trees that are told the GPU's specifications. A GPU
with the chip of a measured one is predicted as that one, at its rate or, where its board allows more power, that of the law if
that is higher. Any other GPU is predicted by trees that see ratios alone, fitted on all GPUs together, and by a law of what
rate it reaches.
Each estimate carries the error that cross-validation found for such a GPU and such a time: with rows held out at random
where the sizes are among those measured, with whole slices of sizes held out where they are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from triosim import gpus
from triosim.compute import doubt
from triosim.compute.base import CLASS_EDGES as CLASS_EDGES
from triosim.compute.learned.ensemble import Ensemble
from triosim.compute.learned.shape_features import describe, specifications
from triosim.compute.rates import RateLaw
from triosim.compute.shapes import Family, Shapes
from triosim.gpus import Gpu

Array = npt.NDArray[np.float64]

CLASSES = ("<20us", "20-200us", ">200us")
#: What an estimate is taken to err by where cross-validation had no such rows.
UNKNOWN_ERROR = 0.25
_MOST_DOUBLINGS = 3.0
#: By how much more estimates are taken to be off for the same chip with other memory or another power limit.
_OTHER_BOARD = 2.0


@dataclass(frozen=True)
class Learned:
    """``rates``: FLOP/s of each known GPU at best; ``own`` trees of one GPU, ``pooled`` of the known, ``other`` of any.

    ``errors``: mean relative error by kind of test ("random", "slices", "left out"), GPU and size class. ``sizes`` are the
    values of each column that were measured. ``provenance`` says where the rows come from and how they were fitted.
    """

    family: Family
    dtype: str
    rates: Mapping[str, float]
    law: RateLaw
    own: Mapping[str, Ensemble]
    pooled: Ensemble | None
    other: Ensemble | None
    sizes: Mapping[str, list[float]] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def knows(self, gpu: Gpu) -> bool:
        """Whether rows of this GPU were fitted, or of one with the same chip."""
        return self._measured(gpu) is not None

    def _measured(self, gpu: Gpu) -> str | None:
        """Return the name of the GPU whose rows say how this one computes."""
        if gpu.name in self.rates:
            return gpu.name
        found = gpus.same_chip(gpu, self.rates)
        return None if found is None else found.name

    def seconds(self, shapes: Shapes, gpu: Gpu) -> Array:
        """Return the time of each call on a GPU; NaN where the model cannot say."""
        name = self._measured(gpu)
        rate = self._rate(gpu, name)
        described = describe(shapes, gpu, rate)
        features = described.features
        if name is not None and name in self.own:
            trees: Ensemble | None = self.own[name]
        elif name is not None and self.pooled is not None:
            trees = self.pooled
            told = specifications(gpus.find(name), self.rates[name])
            features = np.hstack([features, np.tile(told, (len(features), 1))])
        else:
            trees = self.other
        if trees is None:
            return np.full(len(shapes), np.nan)
        found: Array = described.seconds * np.exp(trees.predict(features))
        return found if gpu.name in self.rates else np.fmax(found, self._at_power(shapes, gpu))

    def _rate(self, gpu: Gpu, name: str | None) -> float:
        """Return the FLOP/s that large calls reach on a GPU, of which the rows of the GPU ``name`` tell."""
        law = self.law.rate(gpu, self.dtype)
        if name is None:
            return law
        return self.rates[name] if name == gpu.name else max(self.rates[name], law)

    def _at_power(self, shapes: Shapes, gpu: Gpu) -> Array:
        """Return the least time of calls that the power of a board allows of which no rows were fitted."""
        if self.family != "product":
            return np.zeros(len(shapes))
        flops = 2.0 * shapes["b"] * shapes["m"] * shapes["n"] * shapes["k"]
        least: Array = flops / self.law.power_limit(gpu, self.dtype)
        return least

    def relative_error(self, shapes: Shapes, gpu: Gpu, seconds: Array) -> Array:
        """Return the error that cross-validation found for such calls."""
        where = np.searchsorted(CLASS_EDGES, seconds, side="right")
        name = self._measured(gpu)
        if name is None:
            factor = doubt.of_few(len(self.rates))
            if self.family == "product":
                factor *= doubt.of_limited(gpu, self.dtype, self.law)
            return self._errors("left out", "all")[where] * factor * self._outside(shapes)
        random, slices = self._errors("random", name)[where], self._errors("slices", name)[where]
        measured = np.ones(len(shapes), dtype=bool)
        for name, values in self.sizes.items():
            measured &= np.isin(shapes[name], values)
        other_board = 1.0 if gpu.name in self.rates else _OTHER_BOARD
        return np.where(measured, random, np.fmax(slices, random)) * self._outside(shapes) * other_board

    def _outside(self, shapes: Shapes) -> Array:
        """Return by how much more calls are off that are larger, or smaller, than all that was measured: 1 for others.

        Trees that saw no product of k over 16,384 were off by 8.6% there, where 4.2% was stated; those that saw no attention of
        a batch over 128 by 6.7%, where 3.7% was. So twice at up to twice the size; each further doubling is taken to add as
        much, up to three: the roofline that the trees stand on knows what a size does.
        """
        doublings = np.zeros(len(shapes))
        for name, values in self.sizes.items():
            if values:
                beyond = np.fmax(shapes[name] / max(values), min(values) / np.fmax(shapes[name], 1.0))
                doublings = np.fmax(doublings, np.log2(np.fmax(beyond, 1.0)))
        found: Array = np.where(doublings > 0.0, 1.0 + np.clip(doublings, 1.0, _MOST_DOUBLINGS), 1.0)
        return found

    def _errors(self, test: str, gpu: str) -> Array:
        found = self.errors.get(test, {}).get(gpu, {})
        general = found.get("all", UNKNOWN_ERROR)
        return np.array([found.get(name, general) for name in CLASSES])

    def about(self) -> dict[str, Any]:
        """Return what a file says in words and single numbers."""
        return {
            "family": self.family,
            "dtype": self.dtype,
            "rates": dict(self.rates),
            "law": asdict(self.law),
            "own": list(self.own),
            "pooled": self.pooled is not None,
            "other": self.other is not None,
            "sizes": dict(self.sizes),
            "errors": self.errors,
            "provenance": self.provenance,
        }

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Return the trees as arrays."""
        parts = {f"own {name}": trees for name, trees in self.own.items()}
        parts |= {name: trees for name, trees in (("pooled", self.pooled), ("other", self.other)) if trees is not None}
        return {key: array for name, trees in parts.items() for key, array in trees.arrays(f"{prefix}.{name}").items()}

    @classmethod
    def from_stored(cls, about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> Learned:
        """Return what ``about`` and ``arrays`` were made from."""
        return cls(
            about["family"],
            about["dtype"],
            about["rates"],
            RateLaw(**about["law"]),
            {name: Ensemble.from_arrays(arrays, f"{prefix}.own {name}") for name in about["own"]},
            Ensemble.from_arrays(arrays, f"{prefix}.pooled") if about["pooled"] else None,
            Ensemble.from_arrays(arrays, f"{prefix}.other") if about["other"] else None,
            about["sizes"],
            about["errors"],
            about["provenance"],
        )
