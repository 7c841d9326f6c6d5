"""Reads and writes calibrations, as topology files have them under the key ``calibration``; finds those that ship with triosim.

    calibration:
      gpus_per_node: 8
      note: fitted to 168 rows of nccl.csv
      collectives:
        all_reduce:
          correction: [0.001, 0.0, 0.0, 0.0]
          groups:
            8: {latency: 2.1e-05, ceiling: 2.5e+11, steepness: 0.47, middle: 15.0, first: 512, residuals: [1.01, 0.99]}
      between_nodes:
        any: {latency: 1.2e-05, ceiling: 4.7e+10, steepness: 0.8, middle: 13.9}

``residuals`` are factors at ``first`` bytes and at every doubling from there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from triosim.errors import TopologyError, nearest
from triosim.networks.calibration.curves import Curve, KindCurves, Residuals, Sigmoid, Straggler
from triosim.networks.calibration.model import ANY, Calibration, InterNodeTimes

KINDS = ("all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter")
SHIPPED = Path(__file__).parent / "data"
LARGEST_MIDDLE = 100.0  # e^100 bytes; more is a slip of the pen
LARGEST_WEIGHT = 10.0  # of the linear correction of ln(seconds); so, too
_ROUND = 6  # digits that are written

Key = tuple[str | int, ...]
Where = Callable[[Key], str]


def names() -> list[str]:
    """Return the presets for which a calibration ships."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def ships(preset: str) -> bool:
    """Return whether a calibration ships for a preset."""
    return (SHIPPED / f"{preset}.json").is_file()


@cache
def shipped(name: str) -> Calibration | None:
    """Return the calibration that ships for a preset, or None."""
    path = SHIPPED / f"{name}.json"
    if not path.is_file():
        return None
    return from_mapping(json.loads(path.read_text(encoding="utf-8")), lambda key: f"{path}: {_joined(key)}")


def to_mapping(calibration: Calibration) -> dict[str, Any]:
    """Return a calibration as plain values, rounded, for a file."""
    collectives: dict[str, Any] = {}
    for kind, curves in calibration.kinds.items():
        entry: dict[str, Any] = {"correction": [_rounded(weight) for weight in curves.weights]}
        straggler = calibration.stragglers.get(kind)
        if straggler is not None:
            entry["straggler"] = {"offset": _rounded(straggler.offset), "slope": _rounded(straggler.slope)}
        entry["groups"] = {curve.gpus: _curve_mapping(curve) for curve in curves.curves}
        collectives[kind] = entry
    made: dict[str, Any] = {"gpus_per_node": calibration.gpus_per_node, "note": calibration.note}
    made["collectives"] = collectives
    between = {kind: tier for kind, tier in calibration.between.items() if not tier.assumed}
    if between:
        made["between_nodes"] = {
            kind: {"latency": _rounded(tier.latency), **_sigmoid_mapping(tier.sigmoid)}
            for kind, tier in between.items()
        }
    return made


def _curve_mapping(curve: Curve) -> dict[str, Any]:
    made: dict[str, Any] = {"latency": _rounded(curve.latency), **_sigmoid_mapping(curve.sigmoid)}
    if curve.residuals.sizes:
        made |= {
            "first": int(curve.residuals.sizes[0]),
            "residuals": [_rounded(one) for one in curve.residuals.factors],
        }
    return made


def _sigmoid_mapping(sigmoid: Sigmoid) -> dict[str, float]:
    return {
        "ceiling": _rounded(sigmoid.ceiling),
        "steepness": _rounded(sigmoid.steepness),
        "middle": _rounded(sigmoid.middle),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{_ROUND}g}")


def from_mapping(said: Any, where: Where) -> Calibration:
    """Return the calibration that a mapping describes. Raises ``TopologyError`` that says which key is wrong."""
    top = _Entry(said, where, ())
    top.known("gpus_per_node", "note", "collectives", "between_nodes")
    kinds: dict[str, KindCurves] = {}
    stragglers: dict[str, Straggler] = {}
    for kind in top.mapping("collectives"):
        entry = top.at("collectives").at(_kind(kind, top, "collectives"))
        entry.known("correction", "straggler", "groups")
        kinds[kind] = KindCurves(kind, _groups(entry), entry.weights())
        if "straggler" in entry.said:
            slow = entry.at("straggler")
            slow.known("offset", "slope")
            stragglers[kind] = Straggler(slow.number("offset", -math.inf), slow.number("slope", -math.inf))
    between: dict[str, InterNodeTimes] = {}
    for kind in top.mapping("between_nodes") if "between_nodes" in top.said else ():
        entry = top.at("between_nodes").at(_kind(kind, top, "between_nodes", ANY))
        entry.known("latency", "ceiling", "steepness", "middle")
        between[kind] = InterNodeTimes(entry.number("latency", 0.0, or_equal=True), _sigmoid(entry))
    if not kinds and not between:
        fix = "give one, or write 'calibration: none'"
        raise TopologyError("holds no collective", where=where(("collectives",)), fix=fix)
    return Calibration(top.count("gpus_per_node"), kinds, between, stragglers, str(top.said.get("note", "")))


def _kind(kind: Any, top: _Entry, key: str, *more: str) -> str:
    if kind not in (*KINDS, *more):
        raise TopologyError(
            f"unknown collective '{kind}'", where=top.where((key, kind)), fix=nearest(str(kind), (*KINDS, *more))
        )
    return str(kind)


def _groups(entry: _Entry) -> tuple[Curve, ...]:
    groups = entry.mapping("groups")
    if not groups:
        raise TopologyError("holds no group size", where=entry.where((*entry.path, "groups")), fix="give one or more")
    curves = []
    for gpus in groups:
        one = entry.at("groups").at(gpus)
        count = int(gpus) if str(gpus).isdecimal() else 0
        if count < 2:
            raise TopologyError(f"'{gpus}' is not a group size", where=entry.where(one.path), fix="write 2 or more")
        one.known("latency", "ceiling", "steepness", "middle", "first", "residuals")
        curves.append(Curve(count, one.number("latency", 0.0, or_equal=True), _sigmoid(one), _residuals(one)))
    return tuple(sorted(curves, key=lambda curve: curve.gpus))


def _sigmoid(entry: _Entry) -> Sigmoid:
    steepness = entry.number("steepness", 0.0)
    if steepness > 1.0:
        where = entry.where((*entry.path, "steepness"))
        raise TopologyError(f"{steepness} is above 1, so that more bytes would take less time", where=where)
    middle = entry.number("middle", -math.inf)
    if abs(middle) > LARGEST_MIDDLE:
        where = entry.where((*entry.path, "middle"))
        raise TopologyError(f"{middle:g} is not a logarithm of bytes", where=where, fix="write 13.9 for 1 MiB, say")
    return Sigmoid(entry.number("ceiling", 0.0), steepness, middle)


def _residuals(entry: _Entry) -> Residuals:
    if "residuals" not in entry.said:
        return Residuals()
    first = entry.number("first", 0.0)
    factors = entry.numbers("residuals", 0.0)
    return Residuals(tuple(first * 2.0**place for place in range(len(factors))), factors)


class _Entry:
    """A mapping in a file, and where it stands there."""

    def __init__(self, said: Any, where: Where, path: Key) -> None:
        if not isinstance(said, Mapping):
            raise TopologyError(f"{said!r:.60} is not a mapping", where=where(path), fix="write '{key: value}'")
        self.said: Mapping[Any, Any] = said
        self.where = where
        self.path = path

    def at(self, key: Any) -> _Entry:
        if key not in self.said:
            raise TopologyError(f"'{key}' is missing", where=self.where(self.path))
        return _Entry(self.said[key], self.where, (*self.path, key))

    def mapping(self, key: str) -> Mapping[Any, Any]:
        return self.at(key).said

    def known(self, *keys: str) -> None:
        for key in self.said:
            if key not in keys:
                raise TopologyError("unknown key", where=self.where((*self.path, key)), fix=nearest(str(key), keys))

    def number(self, key: str, above: float, *, or_equal: bool = False) -> float:
        if key not in self.said:
            raise TopologyError(f"'{key}' is missing", where=self.where(self.path))
        return self._number(self.said[key], key, above, or_equal)

    def numbers(self, key: str, above: float) -> tuple[float, ...]:
        values = self.said[key]
        if not isinstance(values, list):
            raise TopologyError(f"{values!r:.60} is not a list", where=self.where((*self.path, key)))
        return tuple(self._number(value, key, above, False) for value in values)

    def _number(self, value: Any, key: str, above: float, or_equal: bool) -> float:
        try:  # YAML reads 1e-5, without a point, as text
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not (number > above or (or_equal and number == above)) or math.isinf(number):
            least = "a number" if above == -math.inf else f"a number {'from' if or_equal else 'above'} {above:g}"
            raise TopologyError(f"{value!r:.60} is not {least}", where=self.where((*self.path, key)))
        return number

    def weights(self) -> tuple[float, ...]:
        if "correction" not in self.said:
            return (0.0, 0.0, 0.0, 0.0)
        found = self.numbers("correction", -math.inf)
        if len(found) != 4:
            raise TopologyError(f"{len(found)} weights, not 4", where=self.where((*self.path, "correction")))
        if max(map(abs, found)) > LARGEST_WEIGHT:
            where = self.where((*self.path, "correction"))
            raise TopologyError(
                f"{max(found, key=abs):g} is not a weight of the correction", where=where, fix="write about 0"
            )
        return found

    def count(self, key: str) -> int:
        value = self.number(key, 0.0)
        if value != int(value):
            raise TopologyError(f"{value} is not a whole number", where=self.where((*self.path, key)))
        return int(value)


def _joined(key: Key) -> str:
    return ".".join(str(part) for part in key)
