"""Fits Gaussian processes: their covariance by the marginal likelihood of some calls, their weights to all of them.

Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006: sections 2.2 (weights), 5.4.1 (likelihood and its
derivatives) and 5.4.2 (what a process that was fitted without a call expects of it). A call that is far from what the others
lead to expect has more noise, as with Student's distribution, so that slow runs and odd choices of kernels do not spread.
"""

from __future__ import annotations

import numpy as np

from triosim.compute.compute_model import Array, Rows
from triosim.compute.fit.boosting import regressor
from triosim.compute.learned.gaussian_process import LABELS, TERMS, Covariance, GaussianProcess, Points, in_common

#: The calls from which the covariance is learned, and the steps of the search.
_SAMPLE, _STEPS = 1000, 40
#: A priori: length scales (features are mostly powers of two), variances of terms and of the noise, and the standard deviation
#: of the logarithm of each.
_SCALE, _LOCAL, _CONSTANT, _NOISE, _PRIOR = 8.0, 0.25, 0.03, 0.015, 0.8
#: A residual of so many standard deviations doubles the variance of a call's noise; a median is 1 / 1.5 of one.
_FAR, _OF_MEDIAN = 2.0, 1.5


def fit(points: Points, target: Array) -> GaussianProcess:
    """Return the process of calls and their values."""
    points = points.rounded()
    rows = _sample(points)
    mean = float(target.mean())
    covariance = learned(points.select(rows), target[rows] - mean)
    between = covariance.between(points, points)
    inverse = np.linalg.inv(between + covariance.noise * np.eye(len(points)))
    residual = inverse @ (target - mean) / np.diag(inverse)
    usual = _OF_MEDIAN * float(np.median(np.abs(residual)))
    noise = covariance.noise * (1.0 + (residual / (_FAR * usual)) ** 2)
    weights = np.linalg.solve(between + np.diag(noise), target - mean).astype(np.float64)
    return GaussianProcess(covariance, points, weights, mean)


def learned(points: Points, target: Array) -> Covariance:
    """Return the covariance under which values, whose mean is zero, are the most likely."""
    regressor()  # says which package is missing: scikit-learn brings scipy
    from scipy.optimize import minimize

    width = points.features.shape[1]
    start = np.log([*[_SCALE] * width, *(_LOCAL if term.local else _CONSTANT for term in TERMS), _NOISE])
    shared = [mask.astype(np.float64) for mask in in_common(points, points)]

    def unlikely(logs: Array) -> tuple[float, Array]:
        value, slope = _negative_log_likelihood(logs, points, target, shared)
        away = (logs - start) / _PRIOR
        return value + 0.5 * float(away @ away), slope + away / _PRIOR

    return _covariance(minimize(unlikely, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x, width)


def _covariance(logs: Array, width: int) -> Covariance:
    values = np.exp(logs)
    return Covariance(values[:width], values[width:-1], float(values[-1]))


def _negative_log_likelihood(logs: Array, points: Points, target: Array, shared: list[Array]) -> tuple[float, Array]:
    """Return the negative logarithm of the likelihood, but for a constant, and its derivatives by the logarithms."""
    width = points.features.shape[1]
    covariance = _covariance(logs, width)
    matern, falling = covariance.matern(points, points)
    terms = [
        variance * mask * (matern if term.local else 1.0)
        for variance, mask, term in zip(covariance.variances, shared, TERMS, strict=True)
    ]
    whole = sum(terms) + covariance.noise * np.eye(len(target))
    inverse = np.linalg.inv(whole)
    weights = inverse @ target
    slope = 0.5 * (inverse - np.outer(weights, weights))
    local = [one * mask for one, mask, term in zip(covariance.variances, shared, TERMS, strict=True) if term.local]
    steep = 3.0 * slope * sum(local) * falling
    scaled = points.features / covariance.scales
    by_scale = [float((steep * (one[:, None] - one) ** 2).sum()) for one in scaled.T]
    by_variance = [float((slope * term).sum()) for term in terms]
    by_noise = covariance.noise * float(np.trace(slope))
    value = 0.5 * float(target @ weights) + 0.5 * float(np.linalg.slogdet(whole)[1])
    return value, np.array([*by_scale, *by_variance, by_noise])


def _sample(points: Points) -> Rows:
    """Return some calls, of GPUs with many a smaller part."""
    which = np.unique(points.labels[:, LABELS.index("gpu")], return_inverse=True)[1]
    share = 1.0 / np.sqrt(np.bincount(which)[which])
    count = min(_SAMPLE, len(points))
    return np.random.default_rng(0).choice(len(points), count, replace=False, p=share / share.sum())
