"""The learned time model of one family of operators in one dtype: a multiple of the roofline, with errors by size.

Boosted trees predict the multiple; of convolutions, whose tables are small and of many GPUs, a Gaussian process does.

A GPU with many measurements has trees of its own; GPUs with fewer share trees that also read the GPU's specifications. A GPU
with the chip of a measured one is predicted as that one, at its rate or, in float32 where its board allows more power, at the
attainable rate if that is higher (``triosim.compute.attainable_rate``). On any other GPU, products and attention are predicted
as on its nearest measured relative (``kinship``), at a rate in proportion; without one, at the attainable rate by trees that
read ratios alone, fitted to all GPUs together.
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
from triosim.compute.attainable_rate import AttainableRate, halves_tensor_cores
from triosim.compute.compute_model import CLASS_EDGES, Array
from triosim.compute.families import Family, FamilyCalls
from triosim.compute.learned import kinship
from triosim.compute.learned.boosted_trees import BoostedTrees
from triosim.compute.learned.call_features import call_features, specifications
from triosim.compute.learned.convolution_features import aligned, convolution_points
from triosim.compute.learned.gaussian_process import GaussianProcess
from triosim.gpus import Gpu, energy

CLASSES = ("<20us", "20-200us", ">200us")
#: The assumed error of an estimate where cross-validation had no such rows.
UNKNOWN_ERROR = 0.25
_MOST_DOUBLINGS = 3.0
#: Columns in which a call that is larger has more tiles of the same kind.
_MORE_OF_THE_SAME = {"convolution": ("batch", "height", "width", "out_height", "out_width")}
#: The factor of the error for the same chip with other memory or another power limit.
_OTHER_BOARD = 2.0
#: What a unit of distance (``kinship``) adds to the error of the measured relatives that predict each other, which are close;
#: an assumption.
_FOR_DISTANCE = 3.0


@dataclass(frozen=True)
class FamilyModel:
    """Fitted trees for one family of operators in one dtype, with the errors of their cross-validation.

    rates: the FLOP/s that each measured GPU reaches.
    own, pooled, other: the trees of single measured GPUs, of all measured ones, and of any other.
    sizes: the values of each column that were measured.
    errors: mean relative errors by kind of test ("random", "slices", "relatives", "left out"), GPU and size class.
    provenance: where the rows come from, and how they were fitted.
    samples: the GPUs that the fit saw, each once for a dtype; 0 for as many as there are rates.
    process: of convolutions, what predicts the multiple on every GPU.
    loop_costs: of convolutions with odd channels, the seconds that the benchmark's loop adds on each measured GPU.
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
    samples: int = 0
    process: GaussianProcess | None = None
    loop_costs: Mapping[str, float] = field(default_factory=dict)

    def measured_gpu(self, gpu: Gpu) -> str | None:
        """Return the name of the measured GPU whose rows hold for a GPU: itself, or one with the same chip; or None."""
        if gpu.name in self.rates:
            return gpu.name
        found = gpus.same_chip(gpu, self.rates)
        return None if found is None else found.name

    def relative(self, gpu: Gpu, dtype: str) -> str | None:
        """Return the name of the measured GPU that one without rows of its own, or of its chip, behaves like; or None."""
        if self.family not in ("product", "attention"):
            return None
        if self.family == "product" and halves_tensor_cores(gpu, dtype):
            return None  # their memory and power hold products back less than on the boards that were measured
        found = kinship.nearest(gpu, self.rates, dtype)
        return None if found is None else found.name

    def seconds(self, calls: FamilyCalls, gpu: Gpu) -> Array:
        """Return the time of each call on a GPU; NaN where the model has no trees for it."""
        if self.process is not None:
            points, roofline = convolution_points(calls, gpu, self.measured_gpu(gpu) or "")
            return roofline * np.exp(self.process.predict(points))
        name = self.measured_gpu(gpu) or self.relative(gpu, calls.dtype)
        rate = self._rate(gpu, name, calls.dtype)
        inputs = call_features(calls, gpu, rate)
        features = inputs.features
        if name is not None and name in self.own:
            trees: BoostedTrees | None = self.own[name]
        elif name is not None and self.pooled is not None:
            trees = self.pooled
            told = specifications(gpus.find(name), self.rates[name])
            features = np.hstack([features, np.tile(told, (len(features), 1))])
        else:
            trees = self.other
        if trees is None:
            return np.full(len(calls), np.nan)
        found: Array = inputs.roofline * np.exp(trees.predict(features))
        return found if gpu.name in self.rates else np.fmax(found, self._at_power(calls, gpu))

    def loop_cost(self, calls: FamilyCalls, gpu: Gpu) -> Array:
        """Return the seconds that the loops of tables add to each call; on a GPU that they did not measure, their mean.

        Channels in multiples of 8 were measured by other loops, which add nothing.
        """
        if not self.loop_costs:
            return np.zeros(len(calls))
        cost = self.loop_costs.get(self.measured_gpu(gpu) or "", float(np.mean(list(self.loop_costs.values()))))
        return np.where(aligned(calls), 0.0, cost)

    def _rate(self, gpu: Gpu, name: str | None, dtype: str) -> float:
        """Return the FLOP/s that large calls reach on a GPU; ``name`` is the measured GPU that it is predicted as, if any."""
        attainable = self.attainable.rate(gpu, dtype)
        if name is None:
            return attainable
        if name == gpu.name:
            return self.rates[name]
        measured = gpus.find(name)
        if self.measured_gpu(gpu) == name:
            clock = gpu.clock_hz / measured.clock_hz if gpu.clock_hz and measured.clock_hz else 1.0
            return max(clock * self.rates[name], attainable if dtype == "float32" else 0.0)
        return self.rates[name] * self._times_faster(gpu, measured, dtype)

    def _times_faster(self, gpu: Gpu, measured: Gpu, dtype: str) -> float:
        """Return the ratio of the rates of a GPU and its measured relative: that of their peaks.

        Where products on the measured one may have been held back by its power, it is that of the rates that power allows: an
        L40S of 350 W says little of a board of 600 W.
        """
        if dtype == "float32":
            return self.attainable.rate(gpu, dtype) / self.attainable.rate(measured, dtype)
        rates = gpu.rate(dtype), measured.rate(self.dtype)
        limits = energy.sustained_rate(gpu, dtype), energy.sustained_rate(measured, self.dtype)
        if self.family == "product" and self.rates[measured.name] <= limits[1]:
            rates = min(rates[0], limits[0]), min(rates[1], limits[1])
        return rates[0] / rates[1]

    def _at_power(self, calls: FamilyCalls, gpu: Gpu) -> Array:
        """Return the shortest time of calls that the board's power allows, where no rows of the GPU were fitted."""
        if self.family != "product":
            return np.zeros(len(calls))
        flops = 2.0 * calls["b"] * calls["m"] * calls["n"] * calls["k"]
        least: Array = flops / self.attainable.power_limit(gpu, calls.dtype)
        return least

    def relative_error(self, calls: FamilyCalls, gpu: Gpu, seconds: Array) -> Array:
        """Return the error that cross-validation found for such calls."""
        where = np.searchsorted(CLASS_EDGES, seconds, side="right")
        name = self.measured_gpu(gpu)
        if name is None and "relatives" in self.errors and (away := self._away(gpu, calls.dtype)) is not None:
            return self._errors("relatives", "all")[where] * (1.0 + _FOR_DISTANCE * away) * self._outside(calls)
        if name is None:
            factor = uncertainty.small_sample_factor(self.samples or len(self.rates))
            if self.family == "product":
                factor *= uncertainty.power_limit_factor(gpu, calls.dtype, self.attainable)
            return self._errors("left out", "all")[where] * factor * self._outside(calls)
        random, slices = self._errors("random", name)[where], self._errors("slices", name)[where]
        measured = np.ones(len(calls), dtype=bool)
        for name, values in self.sizes.items():
            measured &= np.isin(calls[name], values)
        other_board = 1.0 if gpu.name in self.rates else _OTHER_BOARD
        return np.where(measured, random, np.fmax(slices, random)) * self._outside(calls) * other_board

    def _away(self, gpu: Gpu, dtype: str) -> float | None:
        """Return how far a GPU is from its measured relative, where that is of the same generation; None otherwise."""
        name = self.relative(gpu, dtype)
        near = None if name is None else gpus.find(name)
        return kinship.distance(gpu, near, dtype) if near and near.architecture == gpu.architecture else None

    def _outside(self, calls: FamilyCalls) -> Array:
        """Return the factor of the error of calls that are larger, or smaller, than all measured ones: 1 for others.

        Trees that saw no product of k over 16,384 were off by 8.6% there, where 4.2% was stated; those that saw no attention of
        a batch over 128 by 6.7%, where 3.7% was. So the error doubles at up to twice the size; each further doubling is assumed
        to add as much, up to three: the roofline below the trees still follows the size.
        """
        doublings = np.zeros(len(calls))
        for name, values in self.sizes.items():
            if values and name not in _MORE_OF_THE_SAME.get(self.family, ()):
                beyond = np.fmax(calls[name] / max(values), min(values) / np.fmax(calls[name], 1.0))
                doublings = np.fmax(doublings, np.log2(np.fmax(beyond, 1.0)))
        found: Array = np.where(doublings > 0.0, 1.0 + np.clip(doublings, 1.0, _MOST_DOUBLINGS), 1.0)
        return found

    def _errors(self, test: str, gpu: str) -> Array:
        found = self.errors.get(test, {}).get(gpu, {})
        general = found.get("all", UNKNOWN_ERROR)
        return np.array([found.get(name, general) for name in CLASSES])

    def about(self) -> dict[str, Any]:
        """Return everything but the trees, as a file of models keeps it in JSON."""
        trees = {"own": list(self.own), "pooled": self.pooled is not None, "other": self.other is not None}
        trees |= {"process": True} if self.process is not None else {}
        return {
            "family": self.family, "dtype": self.dtype, "rates": self.rates, "law": asdict(self.attainable), **trees,
            "sizes": self.sizes, "errors": self.errors, "provenance": self.provenance,
            **({"samples": self.samples} if self.samples else {}),
            **({"loop_costs": self.loop_costs} if self.loop_costs else {}),
        }  # fmt: skip

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Return the trees, or the process, as arrays."""
        parts = {f"own {name}": trees for name, trees in self.own.items()}
        parts |= {name: trees for name, trees in (("pooled", self.pooled), ("other", self.other)) if trees is not None}
        found = {key: array for name, trees in parts.items() for key, array in trees.arrays(f"{prefix}.{name}").items()}
        return found if self.process is None else found | self.process.arrays(f"{prefix}.process")

    @classmethod
    def from_stored(cls, about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> FamilyModel:
        """Return the model of a file."""
        return cls(
            attainable=AttainableRate(**about["law"]),
            own={name: BoostedTrees.from_arrays(arrays, f"{prefix}.own {name}") for name in about["own"]},
            pooled=BoostedTrees.from_arrays(arrays, f"{prefix}.pooled") if about["pooled"] else None,
            other=BoostedTrees.from_arrays(arrays, f"{prefix}.other") if about["other"] else None,
            **{name: about[name] for name in ("family", "dtype", "rates", "sizes", "errors", "provenance")},
            samples=about.get("samples", 0),
            loop_costs=about.get("loop_costs", {}),
            process=GaussianProcess.from_arrays(arrays, f"{prefix}.process") if "process" in about else None,
        )
