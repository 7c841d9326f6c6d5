"""The time of a prediction for one operator, when a model is asked about many at once.

python benchmarks/operator_models.py

The shipped model of bf16 products, and ``auto`` on a step of GPT-2 that repeats its layers, and with no two operators alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from triosim import gpus
from triosim.compute.families import FamilyCalls
from triosim.compute.learned import model_files
from triosim.compute.models.auto import AutoComputeModel
from triosim.trace import Operator, Trace
from triosim.trace import formats as trace_formats

COUNT, REPEATS = 20_000, 5
TRACE = sorted((Path(__file__).parent.parent / "examples" / "traces").glob("gpt2*.json.gz"))[0]


def main() -> None:
    random = np.random.default_rng(0)
    sizes = {name: random.integers(16, 9000, COUNT).astype(float) for name in "mnk"}
    products = FamilyCalls("product", "bfloat16", {"b": np.ones(COUNT), **sizes})
    model = model_files.find("product", "bfloat16", "H100-SXM")
    assert model is not None, "the package ships it"
    gpu = gpus.find("H100")
    report("products of one table", COUNT, lambda: model.seconds(products, gpu))

    trace = trace_formats.read(TRACE)
    assert isinstance(trace, Trace)
    repeated = several(trace.operators, -(-COUNT // len(trace.operators)))
    unlike = [replace(one, attributes={**one.attributes, "number": row}) for row, one in enumerate(repeated)]
    auto = AutoComputeModel()
    auto.fit(trace)
    for what, operators in (("auto, a step's layers repeat", repeated), ("auto, no two operators alike", unlike)):

        def ask(operators: Sequence[Operator] = operators) -> object:
            return auto.estimate(operators, trace.gpu)

        report(what, len(operators), ask)


def several(operators: Sequence[Operator], times: int) -> list[Operator]:
    """Return a step's operators several times, with ids of their own."""
    largest = 1 + max(operator.id for operator in operators)
    return [
        replace(one, id=one.id + shift, forward=None if one.forward is None else one.forward + shift)
        for shift in range(0, times * largest, largest)
        for one in operators
    ]


def report(what: str, count: int, ask: Callable[[], object]) -> None:
    ask()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        ask()
        times.append((time.perf_counter() - began) / count * 1e6)
    print(f"{what}: {count:,} operators, median {statistics.median(times):.1f} us each, fastest {min(times):.1f}")


if __name__ == "__main__":
    main()
