"""How long the shipped model of bf16 products takes for an operator, when it is asked about many at once.

python benchmarks/operator_models.py
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from triosim import gpus
from triosim.compute import stored
from triosim.compute.shapes import Shapes

COUNT, REPEATS = 20_000, 5


def main() -> None:
    random = np.random.default_rng(0)
    sizes = {name: random.integers(16, 9000, COUNT).astype(float) for name in "mnk"}
    products = Shapes("product", "bfloat16", {"b": np.ones(COUNT), **sizes})
    model = stored.find("product", "bfloat16", "H100-SXM")
    assert model is not None, "the package ships it"
    gpu = gpus.find("H100")
    model.seconds(products, gpu)
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        model.seconds(products, gpu)
        times.append((time.perf_counter() - began) / COUNT)
    print(
        f"{COUNT:,} products: median {statistics.median(times) * 1e6:.1f} us an operator, fastest {min(times) * 1e6:.1f}"
    )


if __name__ == "__main__":
    main()
