"""What the micro-benchmarks draw: the same for the same seed, within limits, over the whole range, known to the models."""

from __future__ import annotations

import numpy as np
import pytest

from triosim.errors import OptionError
from triosim.operators import features
from triosim.tracer.benchmarks.cases import BENCHMARKS, SizeLimits, case, chosen

NONE = SizeLimits(np.inf, np.inf)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_case_is_an_operator_that_the_models_know(name: str) -> None:
    for number in range(20):
        found = case(name, "bfloat16", 0, number, NONE)
        assert found is not None
        assert features.unknown([found.operator]) == []
        assert features.input_bytes(found.operator) > 0
        assert features.output_bytes(found.operator) > 0
        assert all(length > 0 for tensor in found.operator.inputs for length in tensor.shape)
        assert {found.operator.inputs[place].dtype for place in found.integers} <= {"int64"}


@pytest.mark.parametrize("name", ["linear", "conv2d", "foreach_addcdiv"])
def test_a_case_depends_on_its_seed_number_and_dtype_alone(name: str) -> None:
    first = case(name, "float32", 3, 7, NONE)
    assert first == case(name, "float32", 3, 7, NONE)
    assert first != case(name, "float32", 4, 7, NONE)
    assert first != case(name, "float32", 3, 8, NONE)


def test_sizes_are_drawn_log_uniformly() -> None:
    """Half of the products have a depth under 1,024, the middle of 16 to 65,536 on a logarithmic scale."""
    found = [case("linear", "float32", 0, number, NONE) for number in range(2000)]
    depths = np.array([one.operator.inputs[0].shape[1] for one in found if one is not None])
    assert 0.45 < (depths < 1024).mean() < 0.55
    assert depths.min() < 20
    assert depths.max() > 50_000
    assert 0.3 < (depths % 64 == 0).mean() < 0.7


def test_what_is_larger_than_the_limits_is_drawn_again() -> None:
    limits = SizeLimits(1e6, 1e6)
    for name in BENCHMARKS:
        for number in range(10):
            found = case(name, "float32", 0, number, limits)
            if found is not None:
                assert features.flops(found.operator) <= 1e6
                assert sum(tensor.nbytes for tensor in found.operator.inputs) <= 1e6
    assert case("linear", "float32", 0, 0, SizeLimits(1.0, 1.0)) is None


def test_a_name_that_is_none_is_refused() -> None:
    assert chosen(["relu", "linear", "relu"]) == ["relu", "linear"]
    assert chosen([]) == list(BENCHMARKS)
    with pytest.raises(OptionError, match="did you mean 'linear'"):
        chosen(["liner"])
