"""How many points samplers need, beside the exact answer on the same space: GPT-18.4B on 64 H100s, Maya's 1,920 points.

Run with ``python -m benchmarks.samplers [--seeds N] [--budget N]``. A point is one that is valid and was tried, whether it fits
or not; printed is after how many the best is within 1% of the exact answer's step, and how far it is off at the end. What was
found of a point is kept for the next sampler and seed, so that each point is simulated once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator

from benchmarks.search import BENCHMARKS
from triosim.configuration_search.objectives import Objectives
from triosim.configuration_search.options import SearchOptions
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.sampling.attempt import Attempt, Try
from triosim.configuration_search.sampling.budget import Budget
from triosim.configuration_search.sampling.sampled import SampledSearch
from triosim.configuration_search.sampling.sampler import SAMPLERS, Sampler
from triosim.configuration_search.search import run_search
from triosim.configuration_search.spaces.rules import validity_of
from triosim.configuration_search.spaces.space import Space

#: A step within this share of the best is found.
_WITHIN = 0.01


def main() -> None:
    """Compare each sampler with the exact search."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--space", default="gpt", choices=BENCHMARKS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int, default=400)
    given = parser.parse_args()
    space = BENCHMARKS[given.space].space()
    validity = validity_of(space)
    exact = run_search(space, validity, SearchOptions(top=1), lambda *_: None, jobs=1)
    assert exact.best is not None
    assert exact.best.figures is not None
    best = exact.best.figures.step_time_s
    print(f"exact: {len(validity.valid)} points weighed, {exact.count('simulated')} simulated, {best:.4f} s")
    known: dict[str, Outcome] = {}
    for kind in SAMPLERS:
        runs = [_run(space, kind, seed, given.budget, best, known) for seed in range(given.seeds)]
        counts = [count for count, _ in runs]
        found = sorted(count for count in counts if count is not None)
        median = f"{found[len(counts) // 2]}" if len(found) > len(counts) // 2 else f"more than {given.budget}"
        most = f"{found[-1]}" if len(found) == len(counts) else f"more than {given.budget}"
        off = statistics.mean(gap for _, gap in runs)
        print(
            f"{kind}: within {_WITHIN:.0%} after {median} points in the median of {given.seeds} seeds, {most} at most; ",
            end="",
        )
        print(f"{off:.1%} off after {given.budget}")


def _run(
    space: Space, kind: str, seed: int, budget: int, best: float, known: dict[str, Outcome]
) -> tuple[int | None, float]:
    """Return after how many points a sampler was within 1% of the best, and how far it was off at the end."""
    attempt_one, steps = Try(space, Objectives.read("step-time")), list[float]()

    def try_all(attempts: Iterable[Attempt]) -> Iterator[tuple[Attempt, Outcome]]:
        for attempt in attempts:
            found = known.get(attempt.key)
            if found is None or (found.state == "excluded" and not attempt.is_excluded(found, objectives)):
                found = known[attempt.key] = attempt_one(attempt)
            steps.append(found.figures.step_time_s if found.figures is not None else float("inf"))
            yield attempt, found

    objectives = Objectives.read("step-time")
    SampledSearch(space, objectives, Sampler(kind, space, 1, seed), Budget(budget, None), try_all).run()
    reached = [count for count, step in enumerate(steps, 1) if step <= best * (1 + _WITHIN)]
    return (reached[0] if reached else None), min(steps) / best - 1.0


if __name__ == "__main__":
    main()
