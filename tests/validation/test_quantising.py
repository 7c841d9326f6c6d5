"""The fit of what tables of products in few bits take beside the product."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from triosim.gpus import find
from validation.quantising import measured

SIZES = [(m, n, k) for m in (1024, 4096, 8192, 16384) for n in (512, 2048, 8192) for k in (1024, 4096, 16384)]


def test_seconds_a_row_are_found_beside_the_bytes_of_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of 5 us and 1 ns for each million of multiplications, 0.2 ps a number in both; 0.7 ns a row in nvfp4 alone."""
    monkeypatch.setenv("TRIOSIM_DATA", str(tmp_path))
    (tmp_path / "operators").mkdir()
    for name in ("b200", "gb200"):
        number = 2.5 / find(name.upper()).bandwidth
        for form, row, more in (("bf16", 0.0, 0.0), ("nvfp4", 0.7e-9, number)):
            times = [5e-6 + m * (row + (0.2e-12 + more) * k + 1e-15 * n * k) for m, n, k in SIZES]
            lines = [f"{m},{n},{k},{1e3 * time}" for (m, n, k), time in zip(SIZES, times, strict=True)]
            with gzip.open(tmp_path / "operators" / f"gemm_{form}_{name}.csv.gz", "wt") as file:
                file.write("\n".join(["m,n,k,latency_ms", *lines]))
    found = list(measured("nvfp4"))
    assert [one.row for one in found] == pytest.approx([0.7e-9] * 2, rel=1e-3)
    assert found[0].error(0.7e-9) == pytest.approx(0, abs=1e-3)
