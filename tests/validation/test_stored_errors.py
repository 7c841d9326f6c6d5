"""The errors that the shipped models of products and convolutions carry are those that triosim claims."""

from __future__ import annotations

import pytest

from validation import compute


@pytest.mark.parametrize("table", compute.PRODUCTS)
def test_products_on_every_gpu_of_a_table_are_as_near_as_claimed(table: str) -> None:
    dtype, _, gpus = compute.PRODUCTS[table]
    found = list(compute._stored(table, "product", dtype))
    assert len(found) == len(gpus) + 1  # and those that are predicted as their relatives
    assert [row.what for row in found if not 0.0 < row.error < row.claim] == []


@pytest.mark.parametrize(("table", "gpus"), [("convolution", 14), ("convolution float16", 3)])
def test_convolutions_are_as_near_as_claimed(table: str, gpus: int) -> None:
    found = list(compute._stored(table, "convolution", compute.CONVOLUTIONS[table]))
    assert len(found) == gpus + 1  # and those that were left out
    assert [row.what for row in found if not 0.0 < row.error < row.claim] == []
