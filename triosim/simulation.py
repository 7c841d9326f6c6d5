"""``simulate``: predicts the time of a training step on many GPUs, from a trace to a result in five steps."""

from __future__ import annotations

from typing import Any

from triosim.config import RunConfig
from triosim.config.signature import with_options
from triosim.engine import Progress
from triosim.garbage_collector import without_collecting
from triosim.pipeline.collecting import collect
from triosim.pipeline.draws import Draw, other_draws, with_draws
from triosim.pipeline.planning import PlannedRun, plan
from triosim.pipeline.pricing import PricedSubject, price
from triosim.pipeline.reading import TraceLike, read
from triosim.pipeline.running import run
from triosim.pipeline.system import System
from triosim.results.result import Result


@with_options
def simulate(trace: TraceLike, parallel: Any = "single", *, progress: Progress | None = None, **options: Any) -> Result:
    """Predict the time of a training step (or an inference pass) on many GPUs.

    trace: a ``Trace``, or the path of one in any known format. The ``TaskStreams`` of a distributed step, or their file, run
        as they were captured: without ``parallel``.
    parallel: "ddp", "dp=2,tp=4", {"dp": 2, "pp": 4}, or a plug-in ("file.py:Class").
    topology: a ``Topology``, a mapping, a file, or a name such as "dgx-h100" or "ring(8, bandwidth=50 GB/s)".
    network, collective, compute_model: a name, "module:Class", "file.py:Class" or a class.
    conditions: what is uneven or slow, beside what the topology's file says: {"slow_gpus": {3: 1.5}}; see docs/conditions.md.
    timeline: keep every task, for ``Result.save_timeline`` and the Gantt chart; links: what each link carries when.
    progress: called now and then with the simulated time and the number of finished tasks.

    Returns a ``Result``. Raises ``TriosimError`` for whatever is wrong with the input, in one line. All options:
    """
    return simulate_config(trace, RunConfig.of(parallel=parallel, **options), progress)


@without_collecting()
def simulate_config(trace: TraceLike, config: RunConfig, progress: Progress | None = None) -> Result:
    """Do what ``simulate`` does, with the options in one value."""
    return simulate_priced(price(read(trace, config), config), config, progress)


@without_collecting()  # to its end, where most of what was made is gone
def simulate_priced(
    priced: PricedSubject, config: RunConfig, progress: Progress | None = None, system: System | None = None
) -> Result:
    """Simulate what was read and priced, as often as it is to be drawn, on another ``system`` than the configuration's."""
    planned, result = _simulated(priced, config, progress, system)
    if config.draws == 1:
        return result
    others = (simulate_priced(priced, other, progress, drawn) for other, drawn in other_draws(config, planned))
    return with_draws(result, [Draw.of(result), *map(Draw.of, others)])


def _simulated(
    priced: PricedSubject, config: RunConfig, progress: Progress | None, system: System | None
) -> tuple[PlannedRun, Result]:
    planned = plan(priced, config, system)
    return planned, simulate_planned(planned, config, progress)


@without_collecting()
def simulate_planned(planned: PlannedRun, config: RunConfig, progress: Progress | None = None) -> Result:
    """Simulate a plan once."""
    return collect(run(planned, config, progress), planned, config)
