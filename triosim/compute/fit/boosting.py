"""Fits boosted trees with scikit-learn and converts them to ``BoostedTrees``, which need numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triosim.compute.compute_model import Array, Rows
from triosim.compute.learned.boosted_trees import BoostedTrees
from triosim.errors import TriosimError


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """The settings of a fit; ``robust``: twice as many trees, fitted with outliers (slow runs, odd clocks) weighted down."""

    trees: int
    leaves: int
    rate: float
    least: int
    robust: bool = True
    features: float = 0.5


def grow(features: Array, target: Array, settings: TreeSettings, groups: Rows | None = None) -> BoostedTrees:
    """Return trees for ``target``; outliers are weighted by the typical residual of their row's group.

    Robust trees minimise squared errors with the weights of a Student distribution with one degree of freedom, by the residuals
    of trees without weights: two fits, whose mean is closer to the median than either.
    """
    first = _fit(features, target, settings, 0, None)
    if not settings.robust:
        return _ensemble([first], len(features[0]))
    residual = np.abs(target - first.predict(features))
    groups = np.zeros(len(target), dtype=np.int64) if groups is None else groups
    typical = np.array(
        [np.median(residual[groups == group]) if (groups == group).any() else 1.0 for group in range(groups.max() + 1)]
    )
    weights = 1.0 / (1.0 + (residual / (2.0 * np.maximum(typical, 1e-4)[groups])) ** 2)
    return _ensemble([_fit(features, target, settings, seed, weights) for seed in (1, 2)], len(features[0]))


def _fit(features: Array, target: Array, settings: TreeSettings, seed: int, weights: Array | None) -> Any:
    fitted = regressor()(
        max_iter=settings.trees,
        max_leaf_nodes=settings.leaves,
        learning_rate=settings.rate,
        min_samples_leaf=settings.least,
        l2_regularization=1.0,
        max_features=settings.features,
        max_bins=127,
        early_stopping=False,
        random_state=seed,
    )
    return fitted.fit(features, target, sample_weight=weights)


def regressor() -> Any:
    """Return scikit-learn's boosted trees. Raises ``TriosimError`` that names the package where it is missing."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise TriosimError("fitting needs scikit-learn", fix="pip install 'triosim[calibrate]'") from error
    return HistGradientBoostingRegressor


def _ensemble(regressors: list[Any], width: int) -> BoostedTrees:
    """Return the mean of fitted regressors; each has its own bins, so thresholds are gathered from those that tests use."""
    parts: dict[str, list[int]] = {name: [] for name in ("tree", "feature", "first", "last")}
    thresholds: list[float] = []
    leaves: list[list[float]] = []
    for regressor in regressors:
        for (predictor,) in regressor._predictors:
            values: list[float] = []
            _walk(predictor.nodes, 0, len(leaves), values, parts, thresholds)
            leaves.append(values)
    table = np.zeros((len(leaves), max(len(values) for values in leaves)), dtype=np.float32)
    for row, values in enumerate(leaves):
        table[row, : len(values)] = np.array(values) / len(regressors)
    feature, used = np.array(parts["feature"], dtype=np.uint8), np.array(thresholds)
    edges = tuple(np.unique(used[feature == number]) for number in range(width))
    edge = np.zeros(len(used), dtype=np.uint8)
    for number in range(width):
        edge[feature == number] = np.searchsorted(edges[number], used[feature == number])
    tree = np.array(parts["tree"], dtype=np.uint16)
    first, last = (np.array(parts[name], dtype=np.uint8) for name in ("first", "last"))
    offset = float(np.mean([float(np.ravel(regressor._baseline_prediction)[0]) for regressor in regressors]))
    return BoostedTrees(edges, tree, feature, edge, first, last, table, offset)


def _walk(
    nodes: Any, number: int, tree: int, values: list[float], parts: dict[str, list[int]], thresholds: list[float]
) -> None:
    """Number the leaves below a node from left to right, and add the node's test to ``parts``."""
    node = nodes[number]
    if node["is_leaf"]:
        values.append(float(node["value"]))
        return
    first = len(values)
    _walk(nodes, int(node["left"]), tree, values, parts, thresholds)
    noted = {"tree": tree, "feature": int(node["feature_idx"]), "first": first, "last": len(values)}
    for name, value in noted.items():
        parts[name].append(value)
    thresholds.append(float(node["num_threshold"]))
    _walk(nodes, int(node["right"]), tree, values, parts, thresholds)
