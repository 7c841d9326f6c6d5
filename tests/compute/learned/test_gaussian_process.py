"""A Gaussian process between measured calls: what it takes from the same GPU, from others, and from a file."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.compute.learned.gaussian_process import TERMS, Covariance, GaussianProcess, Points


def points(*calls: tuple[float, str, str]) -> Points:
    """Calls of one feature, on a GPU with some units."""
    labels = [(gpu, "any", units, "forward", f"{gpu} {feature}", "aligned") for feature, gpu, units in calls]
    return Points(np.array([[feature] for feature, _, _ in calls]), np.array(labels))


def process(measured: Points, values: list[float], **variances: float) -> GaussianProcess:
    """A process whose terms have a variance of 1 but for those of labels that are named."""
    chosen = [variances.get("_".join(term.labels), 1.0) for term in TERMS]
    covariance = Covariance(np.array([2.0]), np.array(chosen), 1e-9)
    weights = np.linalg.solve(covariance.between(measured, measured) + 1e-9 * np.eye(len(measured)), np.array(values))
    return GaussianProcess(covariance, measured, weights, 0.0)


def test_a_measured_call_is_predicted_as_it_was_measured() -> None:
    measured = points((1.0, "V100", "cores"), (3.0, "V100", "cores"), (1.0, "T4", "cores"))
    assert process(measured, [0.5, -0.2, 0.1]).predict(measured) == pytest.approx([0.5, -0.2, 0.1], abs=1e-6)


def test_terms_of_one_call_fall_as_materns_covariance_of_three_halves() -> None:
    """Of two calls of nothing in common but their units, at twice the length scale: (1 + 2 sqrt 3) exp(-2 sqrt 3)."""
    apart = Covariance(np.array([2.0]), np.array([float(term.labels == ("units",)) for term in TERMS]), 1.0)
    found = apart.between(points((0.0, "V100", "cores")), points((4.0, "T4", "cores"), (4.0, "T4", "none")))
    assert found[0] == pytest.approx([(1 + 12**0.5) * np.exp(-(12**0.5)), 0.0])


def test_a_gpu_without_calls_has_what_its_units_have_in_common() -> None:
    measured = points((1.0, "V100", "cores"), (1.0, "T4", "cores"), (1.0, "P4", "none"))
    near, far = process(measured, [0.4, 0.4, -0.9], direction=0.0, architecture_direction_alignment=0.0).predict(
        points((1.0, "H100", "cores"), (1.0, "H100", "other"))
    )
    assert 0.2 < near < 0.4
    assert far == pytest.approx(0.0)


def test_a_file_keeps_what_is_predicted() -> None:
    fitted = process(points((1.0, "V100", "cores"), (2.5, "T4", "none")), [0.3, -0.7])
    again = GaussianProcess.from_arrays(fitted.arrays("p"), "p")
    asked = points((1.5, "V100", "cores"), (2.0, "H100", "none"))
    assert again.predict(asked) == pytest.approx(fitted.predict(asked), abs=1e-6)
