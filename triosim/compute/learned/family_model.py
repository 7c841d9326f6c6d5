"""The learned time model of one family of operators in one dtype: boosted trees times the roofline, with errors by size.

A GPU with many measurements has trees of its own; GPUs with some share trees that also read the GPU's specifications. A GPU
with the chip of a measured one is predicted as that one, at its rate or, where its board allows more power, at the attainable
rate if that is higher (``triosim.compute.attainable_rate``). Any other GPU is predicted at the attainable rate by trees that
read ratios alone, fitted on all GPUs together.
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
from triosim.compute import uncertainty
from triosim.compute.attainable_rate import AttainableRate
from triosim.compute.compute_model import CLASS_EDGES as CLASS_EDGES
from triosim.compute.compute_model import Array
from triosim.compute.families import Family, FamilyCalls
from triosim.compute.learned.boosted_trees import BoostedTrees
from triosim.compute.learned.call_features import call_features, specifications
from triosim.gpus import Gpu

CLASSES = ("<20us", "20-200us", ">200us")
#: What an estimate is taken to err by where cross-validation had no such rows.
UNKNOWN_ERROR = 0.25
_MOST_DOUBLINGS = 3.0
#: The factor of the error for the same chip with other memory or another power limit.
_OTHER_BOARD = 2.0


@dataclass(frozen=True)
class FamilyModel:
    """``rates``: FLOP/s that each measured GPU reaches; ``own``: trees of one GPU; ``pooled``: of all
    measured ones; ``other``: of any other.

    ``errors``: mean relative error by kind of test ("random", "slices", "left out"), GPU and size class. ``sizes`` are the
    values of each column that were measured. ``provenance`` says where the rows come from and how they were fitted.
    """

    family: Family
    dtype: str
    rates: Mapping[str, float]
    attainable: AttainableRate
    own: Mapping[str, BoostedTrees]
    pooled: BoostedTrees | None
    other: BoostedTrees | None
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

    def seconds(self, shapes: FamilyCalls, gpu: Gpu) -> Array:
        """Return the time of each call on a GPU; NaN where the model cannot say."""
        name = self._measured(gpu)
        rate = self._rate(gpu, name)
        calls = call_features(shapes, gpu, rate)
        features = calls.features
        if name is not None and name in self.own:
            trees: BoostedTrees | None = self.own[name]
        elif name is not None and self.pooled is not None:
            trees = self.pooled
            told = specifications(gpus.find(name), self.rates[name])
            features = np.hstack([features, np.tile(told, (len(features), 1))])
        else:
            trees = self.other
        if trees is None:
            return np.full(len(shapes), np.nan)
        found: Array = calls.roofline * np.exp(trees.predict(features))
        return found if gpu.name in self.rates else np.fmax(found, self._at_power(shapes, gpu))

    def _rate(self, gpu: Gpu, name: str | None) -> float:
        """Return the FLOP/s that large calls reach on a GPU; ``name`` is the measured GPU that it is predicted as, if any."""
        attainable = self.attainable.rate(gpu, self.dtype)
        if name is None:
            return attainable
        return self.rates[name] if name == gpu.name else max(self.rates[name], attainable)

    def _at_power(self, shapes: FamilyCalls, gpu: Gpu) -> Array:
        """Return the shortest time of calls that the board's power allows, where no rows of the GPU were fitted."""
        if self.family != "product":
            return np.zeros(len(shapes))
        flops = 2.0 * shapes["b"] * shapes["m"] * shapes["n"] * shapes["k"]
        least: Array = flops / self.attainable.power_limit(gpu, self.dtype)
        return least

    def relative_error(self, shapes: FamilyCalls, gpu: Gpu, seconds: Array) -> Array:
        """Return the error that cross-validation found for such calls."""
        where = np.searchsorted(CLASS_EDGES, seconds, side="right")
        name = self._measured(gpu)
        if name is None:
            factor = uncertainty.small_sample_factor(len(self.rates))
            if self.family == "product":
                factor *= uncertainty.power_limit_factor(gpu, self.dtype, self.attainable)
            return self._errors("left out", "all")[where] * factor * self._outside(shapes)
        random, slices = self._errors("random", name)[where], self._errors("slices", name)[where]
        measured = np.ones(len(shapes), dtype=bool)
        for name, values in self.sizes.items():
            measured &= np.isin(shapes[name], values)
        other_board = 1.0 if gpu.name in self.rates else _OTHER_BOARD
        return np.where(measured, random, np.fmax(slices, random)) * self._outside(shapes) * other_board

    def _outside(self, shapes: FamilyCalls) -> Array:
        """Return the factor of the error of calls that are larger, or smaller, than all that was measured: 1 for others.

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
        """Return everything but the trees, as a file of models keeps it in JSON."""
        return {
            "family": self.family,
            "dtype": self.dtype,
            "rates": dict(self.rates),
            "law": asdict(self.attainable),
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
    def from_stored(cls, about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> FamilyModel:
        """Return what ``about`` and ``arrays`` were made from."""
        return cls(
            about["family"],
            about["dtype"],
            about["rates"],
            AttainableRate(**about["law"]),
            {name: BoostedTrees.from_arrays(arrays, f"{prefix}.own {name}") for name in about["own"]},
            BoostedTrees.from_arrays(arrays, f"{prefix}.pooled") if about["pooled"] else None,
            BoostedTrees.from_arrays(arrays, f"{prefix}.other") if about["other"] else None,
            about["sizes"],
            about["errors"],
            about["provenance"],
        )
