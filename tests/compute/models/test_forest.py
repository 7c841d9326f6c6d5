"""Trees evaluated by bit masks are the trees that were grown, and what ships is sane, small and quick."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triosim import gpus
from triosim.compute.compute_model import Estimates
from triosim.compute.families import FamilyCalls
from triosim.compute.learned import model_files
from triosim.compute.learned.boosted_trees import BoostedTrees
from triosim.compute.models.forest import Forest, Reduction
from triosim.compute.models.grouped_products import SLOWDOWN
from triosim.errors import TriosimError
from triosim.trace import Operator, Tensor

SHIPPED = sorted(model_files.SHIPPED.glob("*.npz"))


def product(m: float, n: float, k: float, dtype: str = "bfloat16") -> FamilyCalls:
    sizes = {"b": 1.0, "m": m, "n": n, "k": k}
    return FamilyCalls("product", dtype, {name: np.array([value]) for name, value in sizes.items()})


def linear(m: int, n: int, k: int, dtype: str = "bfloat16", name: str = "aten::linear") -> Operator:
    inputs = (Tensor(0, (m, k), dtype), Tensor(1, (n, k), dtype))
    return Operator(0, name, "forward", "", inputs, (Tensor(2, (m, n), dtype),), 0.0)


def test_a_small_forest_by_hand() -> None:
    """Tree one: x <= 1 gives 10, otherwise y <= 5 gives 20 or 30. Tree two: y <= 2 gives 1 or 2."""
    trees = BoostedTrees(
        (np.array([1.0]), np.array([2.0, 5.0])),
        tree=np.array([0, 0, 1], dtype=np.uint16),
        feature=np.array([0, 1, 1], dtype=np.uint8),
        edge=np.array([0, 1, 0], dtype=np.uint8),
        first=np.array([0, 1, 0], dtype=np.uint8),
        last=np.array([1, 2, 1], dtype=np.uint8),
        leaves=np.array([[10, 20, 30], [1, 2, 0]], dtype=np.float32),
        offset=0.5,
    )
    rows = np.array([[1.0, 0.0], [1.5, 2.0], [1.5, 5.0], [1.5, 6.0], [0.0, 9.0]])
    assert trees.predict(rows).tolist() == [11.5, 21.5, 22.5, 32.5, 12.5]


def test_the_trees_are_those_of_scikit_learn() -> None:
    boosting = pytest.importorskip("triosim.compute.fit.boosting")
    pytest.importorskip("sklearn")
    random = np.random.default_rng(1)
    features = random.normal(size=(700, 5)).round(1)
    target = features[:, 0] * features[:, 1] + random.normal(size=700)
    settings = boosting.TreeSettings(trees=30, leaves=20, rate=0.2, least=3, robust=False)
    grown = boosting.grow(features, target, settings)
    theirs = boosting._fit(features, target, settings, 0, None)
    np.testing.assert_allclose(grown.predict(features), theirs.predict(features), atol=1e-5)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_ships_says_where_it_comes_from(path: Path) -> None:
    (model,) = model_files.load(path).models
    assert model_files.file_name(model.family, model.dtype) == path.name
    assert model.provenance["source"]
    assert model.provenance["rows"].keys() == model.rates.keys()
    for gpu in model.rates:
        assert 0.0 < model.errors["random"][gpu]["all"] < 0.4


def test_what_ships_is_small() -> None:
    assert SHIPPED
    assert sum(path.stat().st_size for path in model_files.SHIPPED.iterdir()) < 6e6


def test_stored_models_say_the_same_and_are_the_same_bytes(tmp_path: Path) -> None:
    models = model_files.load(SHIPPED[0]).models
    for name in ("one.npz", "two.npz"):
        model_files.save(models, tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes() == SHIPPED[0].read_bytes()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04broken", b"hello"])
def test_a_broken_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "models.npz"
    path.write_bytes(content)
    with pytest.raises(TriosimError, match=r"models\.npz"):
        model_files.load(path)


def scaled(m: int, n: int, k: int, dtype: str) -> Operator:
    """A product in fp8 with one scale a tensor."""
    tensors = (Tensor(0, (m, k), dtype), Tensor(1, (k, n), dtype), Tensor(2, (), "float32"), Tensor(3, (), "float32"))
    return Operator(0, "aten::_scaled_mm", "forward", "", tensors, (Tensor(4, (m, n), "bfloat16"),), 0.0)


def test_factors_in_eight_bits_take_less_time_and_gradients_in_e5m2_about_as_much() -> None:
    operators = [linear(8192, 8192, 8192), *(scaled(8192, 8192, 8192, f"float8_{one}") for one in ("e4m3fn", "e5m2"))]
    for gpu in ("H100", "B200", "L40S", "B300"):
        plain, narrow, gradient = Forest().estimate(operators, gpu).seconds
        assert 0.49 * plain < narrow < 0.9 * plain  # where power limits both, half as wide factors take half the time
        assert gradient == narrow


def test_half_precision_runs_at_its_own_rate_on_chips_without_bfloat16() -> None:
    """A V100 does 125 TFLOP/s in float16 on tensor cores, and 15.7 in float32, which it computes bfloat16 in."""
    half, brain = (
        Forest().estimate([linear(4096, 4096, 4096, dtype)], "V100").seconds[0] for dtype in ("float16", "bfloat16")
    )
    assert 4 < brain / half < 12


@pytest.mark.parametrize("gpu", ["A100", "H100", "H200", "L4", "B200", "MI300X", "RTX-PRO-6000-Server"])
def test_times_are_above_the_peak_and_grow_with_the_product(gpu: str) -> None:
    sizes = (512, 2048, 8192)
    found = Forest().estimate([linear(size, size, size) for size in sizes], gpu)
    peak = gpus.find(gpu).rate("bfloat16")
    assert (np.diff(found.seconds) > 0).all()
    for size, seconds in zip(sizes, found.seconds, strict=True):
        assert seconds > 2 * size**3 / peak
    assert (found.relative_error > 0).all()


def test_a_gpu_that_was_not_measured_is_less_sure() -> None:
    operators = [linear(2048, 2048, 2048)]
    known, unknown = (Forest().estimate(operators, gpu).relative_error[0] for gpu in ("H100", "MI300X"))
    assert known < 0.1 < 2 * unknown


def test_sizes_between_those_measured_are_less_sure() -> None:
    found = Forest().estimate([linear(2048, 4096, 4096), linear(2000, 4000, 4000)], "H100")
    assert found.relative_error[0] < found.relative_error[1]


def test_what_has_no_family_is_left_to_others() -> None:
    dropout = linear(8, 8, 8, name="aten::dropout")
    estimates: Estimates = Forest().estimate([dropout, linear(64, 64, 64)], "H100")
    assert np.isnan(estimates.seconds).tolist() == [True, False]
    assert np.isnan(Reduction().estimate([dropout], "H100").seconds[0])


def test_models_of_ones_own_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model,) = model_files.load(model_files.SHIPPED / "product_bfloat16.npz").models
    model_files.save([model], tmp_path / "own.npz")
    monkeypatch.setitem(os.environ, model_files.ENVIRONMENT, str(tmp_path))
    found = model_files.find("product", "bfloat16", "H100-SXM")
    assert found is not None
    assert found is not model_files._shipped("product", "bfloat16")


def test_tf32_takes_as_long_as_half_precision_with_factors_twice_as_wide() -> None:
    """An A100 does 156 TFLOP/s in TF32 and 312 in bfloat16; a V100 has no TF32, and computes in float32."""
    single = linear(4096, 4096, 2048, "float32")
    narrow = replace(single, attributes={"allow_tf32": True})
    half = linear(4096, 4096, 4096, "bfloat16")
    for gpu, other in (("A100-SXM-80GB", half), ("V100-SXM2-32GB", single)):
        found, wanted = Forest().estimate([narrow, other], gpu).seconds
        assert found == wanted


def test_a_product_of_groups_in_fused_kernels_takes_as_long_as_one_of_all_rows_in_whole_tiles() -> None:
    """200 rows in each of four groups are two tiles of 128 rows each: 1,024 rows. Group by group it takes longer."""
    rows, weights = Tensor(0, (800, 2048), "bfloat16"), Tensor(1, (4, 2048, 4096), "bfloat16")
    by_group = Operator(
        0, "aten::_grouped_mm", "forward", "", (rows, weights), (Tensor(2, (800, 4096), "bfloat16"),), 0.0
    )
    fused = replace(by_group, attributes={"kernel": "fused"})
    found = Forest().estimate([by_group, fused, linear(1024, 4096, 2048)], "H100")
    assert found.seconds[1] == found.seconds[2]
    assert found.seconds[0] == pytest.approx(SLOWDOWN * found.seconds[1])
    assert found.relative_error[0] == found.relative_error[1] > found.relative_error[2]


def test_in_a_step_a_scaled_product_does_not_quantise_its_activations() -> None:
    """vLLM's layer takes 5.3 ns a row, and 5 bytes a number at 3.35 TB/s: 187 us for 16,384 rows of 4,096."""
    operator = [scaled(16384, 16384, 4096, "float8_e4m3fn")]
    step, loop = (Forest(sustained=one).estimate(operator, "H100").seconds[0] for one in (True, False))
    assert loop - step == pytest.approx(16384 * (5.3e-9 + 5 * 4096 / 3.35e12), rel=1e-3)
