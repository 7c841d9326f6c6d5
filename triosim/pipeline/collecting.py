"""The last step of a simulation, ``collect``: what the run left behind becomes a result."""

from __future__ import annotations

from triosim.config import RunConfig
from triosim.garbage_collector import without_collecting
from triosim.pipeline.inputs import inputs_of
from triosim.pipeline.planning import PlannedRun
from triosim.pipeline.running import Execution
from triosim.results.figures import figures
from triosim.results.finished_run import FinishedRun, MetricOptions
from triosim.results.result import Result


@without_collecting()
def collect(execution: Execution, planned: PlannedRun, config: RunConfig) -> Result:
    """Return the result of a run. Raises ``SimulationError`` where nothing was computed."""
    subject, network = planned.priced.subject, execution.network
    finished = FinishedRun(execution.recording, subject.trace, planned.plan, network, planned.memory)
    data = figures(
        finished,
        inputs=inputs_of(subject, config, network.topology),
        notes=(*planned.notes, *execution.notes),
        options=MetricOptions(config.tokens_per_sample, config.price, planned.system.conditions.gpu_kinds),
    )
    return Result(data, execution.recording, network.topology, network, planned.memory)
