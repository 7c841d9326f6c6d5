"""How long a search takes: Maya's space of GPT-18.4B on 64 H100s, and Llama 3 405B on 512 and on 16,384.

Run with ``python benchmarks/search.py [--jobs N] [SPACE ...]``; the spaces are ``gpt``, ``405b`` and ``405b-16384``. With
``--every`` all valid points that fit are simulated too, and the best of them is compared with the one that the search found;
those that do not fit because others do not are planned. ``--executor ray`` works on a Ray cluster that runs, whose workers are
no processes of this one: their processor time is not counted. With ``--points N`` instead some N valid points are weighed and
simulated after each other in one process, in the order of a search and in random order.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from triosim.config import RunConfig
from triosim.configuration_search.evaluation import Simulate, Weigh
from triosim.configuration_search.exact import Searched
from triosim.configuration_search.memory_order import IMPLIED, weighing_order
from triosim.configuration_search.options import SearchOptions
from triosim.configuration_search.outcome import Outcome
from triosim.configuration_search.point import Point
from triosim.configuration_search.search import run_search
from triosim.configuration_search.spaces.declaration import of_texts, space_of
from triosim.configuration_search.spaces.rules import validity_of
from triosim.configuration_search.spaces.space import Space
from triosim.configuration_search.spaces.subject import subject_of
from triosim.configuration_search.workers import Evaluate, processes

#: How many points that follow each other in a search are timed at each of some places of the space.
_IN_A_ROW = 24


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A model, the options that all points share, and what varies."""

    model: str
    options: Mapping[str, object]
    varied: str

    def space(self) -> Space:
        """Return the space."""
        config = RunConfig.of(**self.options)
        return space_of(subject_of(self.model, config), config, of_texts(self.varied.split()))


_LLAMA = "tp=8 cp=1,2,4 pp=4,8,16 schedule=1f1b,interleaved data_parallel=fsdp,zero1 recompute=none,selective,full"

BENCHMARKS = {
    "gpt": Benchmark(
        "gpt-18.4b",
        {"seq": 2048, "global_batch_size": 512, "topology": "dgx-h100(gpus=64)"},
        "tp=1,2,4,8 pp=1,2,4,8 micro_batches=1*pp,2*pp,4*pp,6*pp,8*pp virtual_stages=1,2,4 recompute=none,full "
        "sequence_parallel=no,yes data_parallel=ddp,zero1",
    ),
    "405b": Benchmark(
        "llama3-405b",
        {"seq": 8192, "global_batch_size": 512, "topology": "dgx-h100(gpus=512)", "micro_batch_size": 1},
        _LLAMA,
    ),
    "405b-16384": Benchmark(
        "llama3-405b",
        {"seq": 8192, "global_batch_size": 2048, "topology": "dgx-h100(gpus=16384)", "micro_batch_size": 1},
        _LLAMA,
    ),
}


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", nargs="*", default=["gpt"], choices=BENCHMARKS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--executor", default="local", choices=("local", "ray"))
    parser.add_argument("--top", type=int, default=1)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--points", type=int, metavar="N")
    given = parser.parse_args()
    for name in given.spaces:
        space = BENCHMARKS[name].space()
        if given.points:
            _time_points(name, space, given.points)
            continue
        options = SearchOptions(top=given.top, executor=given.executor, jobs=given.jobs)
        found = _search(name, space, options)
        if given.every:
            _compare_with_every(found, given.jobs)


def _search(name: str, space: Space, options: SearchOptions) -> Searched:
    began = time.perf_counter()
    validity = validity_of(space)
    jobs = options.jobs or 1
    found = run_search(space, validity, options, lambda *_: None, jobs=jobs)
    seconds = time.perf_counter() - began
    fitting = found.count("simulated") + found.count("excluded")
    print(
        f"{name}: {validity.points:,} points, {len(validity.valid):,} valid, {found.count('out_of_memory'):,} out of memory"
    )
    print(
        f"  {found.count('simulated'):,} of {fitting:,} that fit simulated ({found.count('simulated') / fitting:.1%})"
    )
    print(
        f"  {seconds:.1f} s with {jobs} jobs, {_processor_seconds():.1f} s of processors in this and earlier searches"
    )
    print(f"  {_peak_gigabytes():.2f} GB in the largest process, gap {found.gap:.1%}")
    if found.best is not None and found.best.figures is not None:
        print(f"  best: {found.best.figures.step_time_s:.4f} s, {Point.read(found.best.key)}")
    return found


def _processor_seconds() -> float:
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _peak_gigabytes() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024 / 1e9


def _compare_with_every(found: Searched, jobs: int) -> None:
    """Simulate all valid points that fit, and say whether one is better than what was found."""
    points = [Point.read(key) for key, one in found.outcomes.items() if one.state in ("simulated", "excluded")]
    began = time.perf_counter()
    too_large = [Point.read(key) for key, one in found.outcomes.items() if one.state == "out_of_memory"]
    with processes(Weigh(found.space), Simulate(found.space), jobs=jobs) as (weigh, simulate):
        points += [point for point, one in weigh(too_large) if one.state != "out_of_memory"]
        times = {point.key: one.figures.step_time_s for point, one in simulate(points) if one.figures is not None}
    above = [key for key, step in times.items() if (at := found.outcomes[key].at_bound) and at.step_time_s > step]
    fitting = len(points) - found.count("simulated") - found.count("excluded")
    best = min(times, key=lambda key: (times[key], key))
    same = found.best is not None and found.best.figures is not None and times[best] == found.best.figures.step_time_s
    print(
        f"  all {len(times):,} simulated in {time.perf_counter() - began:.0f} s: {times[best]:.4f} s, {Point.read(best)}"
    )
    print(f"  the same best: {'yes' if same else 'no'}; bounds above the simulated time: {len(above)}")
    print(f"  points that fit, though others did not: {fitting}")


def _time_points(name: str, space: Space, count: int) -> None:
    """Say how many seconds of a processor points take once the process is warm, one after the other."""
    valid, chance = validity_of(space).valid, random.Random(0)
    ordered = weighing_order(space, valid)
    firsts = sorted(chance.sample(range(0, len(ordered) - _IN_A_ROW, _IN_A_ROW), max(1, count // _IN_A_ROW)))
    in_order = [point for first in firsts for point in ordered[first : first + _IN_A_ROW]]
    shuffled = chance.sample(valid, min(count, len(valid)))
    with processes(Weigh(space), Simulate(space)) as (weigh, simulate):
        _seconds(simulate, in_order[:1])  # loads what is needed
        planned = [one for one, outcome in _seconds(weigh, in_order) if not outcome.reason.startswith(IMPLIED)]
        _print_times(name, "memory and bound, of points that are planned", planned)
        _print_times(name, "simulate, in the order of a search", [one for one, _ in _seconds(simulate, in_order)])
        _print_times(name, "simulate, in random order", [one for one, _ in _seconds(simulate, shuffled)])


def _seconds(evaluate: Evaluate[Point], points: Iterable[Point]) -> list[tuple[float, Outcome]]:
    found, began = list[tuple[float, Outcome]](), time.process_time()
    for _, outcome in evaluate(points):
        found.append((time.process_time() - began, outcome))
        began = time.process_time()
    return found


def _print_times(name: str, what: str, seconds: list[float]) -> None:
    p90 = sorted(seconds)[int(0.9 * len(seconds))]
    print(f"{name}: {what}: {len(seconds)} points, mean {statistics.fmean(seconds):.3f} s, p90 {p90:.3f} s")


if __name__ == "__main__":
    main()
