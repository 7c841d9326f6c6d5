"""Whether measured tables say how fast kernels are whose inputs are in the L2 cache.

``python -m validation.cache_reads`` prints, for products of up to 16 rows, which do little but read their weight, the bytes
that they move in a second, as a share of the memory's nominal bandwidth, by how much of the L2 all their bytes are: a share
above 1 is read from the cache. Of element-wise operators it prints the fewest bytes that a row moves.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator

import numpy as np

from triosim import gpus
from validation.report import data

PRODUCTS = {"a100": "A100", "h100": "H100", "h200": "H200", "l40s": "L40S", "b200": "B200", "gb200": "GB200"}
MOST_ROWS = 16
BANDS = ((0.1, 0.25), (0.25, 0.5), (0.5, 0.9), (1.5, 3.0), (3.0, 10.0))
_BF16, _FP32 = 2, 4


def rows_of(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table."""
    with io.TextIOWrapper(gzip.open(data(f"operators/{name}.csv.gz")), encoding="utf-8") as file:
        yield from csv.DictReader(file)


def main() -> None:
    bands = [f"{low:g} to {high:g} x L2" for low, high in BANDS]
    print(f"| products, share of the memory's bandwidth: median (most) | {' | '.join(bands)} |")
    print(f"|---|{'--:|' * len(bands)}")
    for table, name in PRODUCTS.items():
        gpu = gpus.find(name)
        found = np.array(
            [
                (moved := _BF16 * (m * n + n * k + m * k), moved / (float(row["latency_ms"]) * 1e-3) / gpu.bandwidth)
                for row in rows_of(f"gemm_bf16_{table}")
                for m, n, k in [(int(row["m"]), int(row["n"]), int(row["k"]))]
                if m <= MOST_ROWS
            ]
        )
        shares = [
            found[(found[:, 0] >= low * gpu.l2_bytes) & (found[:, 0] < high * gpu.l2_bytes), 1] for low, high in BANDS
        ]
        cells = [f"{np.median(one):.2f} ({one.max():.2f})" if one.size else "-" for one in shares]
        print(f"| {gpu.name}, L2 of {gpu.l2_bytes / 1e6:.0f} MB | {' | '.join(cells)} |")
    least = min(2 * _FP32 * int(row["B"]) * int(row["H"]) for row in rows_of("elem_fp32_multi_gpu"))
    print(f"\nelement-wise operators move at least {least / 1e6:.0f} MB a row")


if __name__ == "__main__":
    main()
