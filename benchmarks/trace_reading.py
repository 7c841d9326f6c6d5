"""The time to read a trace of 50,000 operators: the goal is under a second.

python benchmarks/trace_reading.py [OPERATORS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import triosim
from triosim.trace import Operator, Tensor, Trace

GOAL = 1.0


def long_trace(count: int) -> Trace:
    """Return a chain of operators, each with a weight of its own and a result that the next reads."""
    before = Tensor(0, (128, 1024), category="input", storage=0)
    operators = []
    for number in range(1, count + 1):
        weight = Tensor(2 * number, (1024, 1024), category="parameter", storage=2 * number)
        result = Tensor(2 * number + 1, (128, 1024), storage=2 * number + 1)
        layer = f"layer{number // 8}"
        operators.append(
            Operator(number, "aten::linear", "forward", layer, (before, weight), (result,), 1e-5 + number * 1e-9)
        )
        before = result
    return Trace(tuple(operators), 128, "chain", "none", "made up")


def measure(count: int, repeats: int = 3) -> dict[str, tuple[float, float]]:
    """Return size in MB and the best time of some readings in seconds, plain and compressed."""
    trace = long_trace(count)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("trace.json", "trace.json.gz"):
            path = Path(folder) / name
            triosim.save_trace(trace, path)
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                read = triosim.load_trace(path)
                times.append(time.perf_counter() - start)
                del read
            found[name] = (path.stat().st_size / 1e6, min(times))
    return found


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    print(f"{count:,} operators, {2 * count + 1:,} tensors")
    print(f"{'file':15} {'MB':>6} {'seconds':>8}   under {GOAL:g} s")
    for name, (size, seconds) in measure(count).items():
        print(f"{name:15} {size:6.1f} {seconds:8.2f}   {'yes' if seconds < GOAL else 'no'}")


if __name__ == "__main__":
    main()
